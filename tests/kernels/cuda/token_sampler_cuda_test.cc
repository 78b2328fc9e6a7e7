// The token sampler on a GPU against the CPU's: the same token from the same logits, in every row.
#include "kernels/token_sampler_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "cuda_launch.h"
#include "kernels/cuda/rows/token_kernels.h"
#include "token_batch.h"

namespace allot::kernels {
namespace {

using testing::Batch;
using testing::ChosenTokens;
using testing::CudaTest;
using testing::edge_batches;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::kOldToken;
using testing::NamedBatch;
using testing::random_batch;
using testing::require;

class TokenSamplerCuda : public CudaTest {
 protected:
  // `row_blocks` 0: as choose_tokens_cuda decides.
  ChosenTokens run(const Batch& batch, uint32_t row_blocks = 0, const std::vector<int32_t>& seen_row = {}) {
    cudaStream_t stream = nullptr;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    std::vector<std::unique_ptr<GuardedArray>> arrays;
    const auto put = [&]<class X>(const std::vector<X>& values, size_t alignment) {
      arrays.push_back(std::make_unique<GuardedArray>(values.size() * sizeof(X), alignment));
      arrays.back()->upload(values.data(), stream);
      require(cudaStreamSynchronize(stream), "upload");
      return arrays.back()->data();
    };
    ChooseTokensParams p;
    p.rows = batch.rows;
    p.vocab_size = batch.vocab_size;
    p.dtype = batch.dtype;
    p.logits = put(batch.logits.bytes(), 16);
    p.logits_stride = batch.stride;
    p.rules = static_cast<const TokenRule*>(put(batch.rules, 4));
    p.draws = static_cast<const SequenceDraws*>(put(batch.draws, 4));
    p.positions = static_cast<const int32_t*>(put(batch.positions, 4));
    p.seen = static_cast<uint32_t*>(put(batch.seen, 4));
    const GuardedArray& seen = *arrays.back();
    p.seen_rows = static_cast<int64_t>(batch.seen.size()) / seen_words(batch.vocab_size);
    if (!seen_row.empty()) p.seen_row = static_cast<const int32_t*>(put(seen_row, 4));
    p.chosen = static_cast<int32_t*>(put(std::vector<int32_t>(batch.rows, kOldToken), 4));
    const GuardedArray& chosen = *arrays.back();
    p.fault = static_cast<int32_t*>(put(std::vector<int32_t>{kNoFaultyRow}, 4));
    const GuardedArray& fault = *arrays.back();
    if (row_blocks == 0) {
      choose_tokens_cuda(p, gpu_limits(), stream);
    } else {
      cuda::launch_choose_tokens(p, row_blocks, gpu_limits(), stream);
    }
    const auto get = [&]<class X>(const GuardedArray& array, std::vector<X> values) {
      const std::vector<unsigned char> bytes = array.download(stream);
      values.resize(bytes.size() / sizeof(X));
      std::memcpy(values.data(), bytes.data(), bytes.size());
      return values;
    };
    ChosenTokens result{.chosen = get(chosen, std::vector<int32_t>()),
                        .seen = get(seen, std::vector<uint32_t>()),
                        .fault = get(fault, std::vector<int32_t>())[0]};
    EXPECT_EQ(arrays.front()->download(stream), batch.logits.bytes()) << "the logits changed";
    for (const auto& array : arrays) array->expect_guards("an array of the sampler", stream);
    require(cudaStreamDestroy(stream), "cudaStreamDestroy");
    return result;
  }

  // Without clusters, or kernels compiled for them, a row has one.
  static uint32_t most_row_blocks() { return gpu_limits().compute_capability < 90 ? 1 : cuda::kMaxRowBlocks; }

  void expect_as_on_cpu(Batch& batch, uint32_t row_blocks = 0) {
    testing::expect_as_on_cpu(batch, run(batch, row_blocks), std::to_string(row_blocks) + " blocks");
  }
};

TEST_F(TokenSamplerCuda, ChoosesWhatTheCpuChooses) {
  uint32_t seed = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const int32_t vocab_size : {1, 5, 8, 33, 100, 1000, 4097, 50257}) {
      for (const int64_t rows : {1, 6, 40, 100, 300}) {
        if (rows * vocab_size > 6'000'000) continue;
        Batch batch = random_batch(dtype, rows, vocab_size, ++seed);
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_as_on_cpu(batch);
      }
    }
  }
}

TEST_F(TokenSamplerCuda, ChoosesWhatTheCpuChoosesFromLargeVocabulariesForEveryNumberOfBlocks) {
  uint32_t seed = 1000;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (const int32_t vocab_size : {128256, 152064, cuda::kMaxVocabulary}) {
      for (uint32_t row_blocks = 1; row_blocks <= most_row_blocks(); row_blocks *= 2) {
        Batch batch = random_batch(dtype, 12, vocab_size, ++seed);
        SCOPED_TRACE("seed " + std::to_string(seed));
        expect_as_on_cpu(batch, row_blocks);
      }
    }
  }
}

TEST_F(TokenSamplerCuda, ChoosesWhatTheCpuChoosesAtTheEdgesOfWhatIsCounted) {
  for (const uint32_t row_blocks : {1u, std::min(4u, most_row_blocks())}) {
    for (NamedBatch& edge : edge_batches()) {
      SCOPED_TRACE(edge.name);
      expect_as_on_cpu(edge.batch, row_blocks);
    }
  }
}

// More distinct weights in one bin than the list of a block holds: the row itself is divided further.
TEST_F(TokenSamplerCuda, FindsThresholdsAmongManyNearlyEqualWeights) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(0, 1e-3f);
  for (const uint32_t row_blocks : {1u, std::min(4u, most_row_blocks()), most_row_blocks()}) {
    Batch batch(DType::kFloat32, 8, 100'000);
    for (int64_t row = 0; row < batch.rows; ++row) {
      batch.rules[row].temperature = 1;
      batch.rules[row].top_p = 0.1f + 0.1f * static_cast<float>(row);
      for (int32_t id = 0; id < batch.vocab_size; ++id) batch.set(row, id, uniform(random));
    }
    expect_as_on_cpu(batch, row_blocks);
  }
}

TEST_F(TokenSamplerCuda, TakesTheLowestIdsOfATieIntoTheNucleus) {
  for (const float top_p : {1e-9f, 0.25f, 0.6f, 0.999f}) {
    Batch batch(DType::kBFloat16, 400, 9'000);
    for (int64_t row = 0; row < batch.rows; ++row) {
      batch.rules[row].temperature = 1;
      batch.rules[row].top_p = top_p;
      for (int32_t id = 0; id < batch.vocab_size; ++id) batch.set(row, id, 2.5f);
    }
    const ChosenTokens result = run(batch);
    const auto limit = static_cast<int32_t>(std::ceil(static_cast<double>(top_p) * 9'000));
    int32_t highest = 0;
    for (const int32_t id : result.chosen) {
      ASSERT_LT(id, limit) << "top_p " << top_p;
      highest = std::max(highest, id);
    }
    EXPECT_GE(highest, 0.97 * limit - 1) << "top_p " << top_p;
  }
}

TEST_F(TokenSamplerCuda, DrawsTokensAsOftenAsTheirProbabilitiesSay) {
  constexpr int32_t kVocab = 40;
  Batch batch(DType::kFloat32, 40'000, kVocab);
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits;
  for (int32_t id = 0; id < kVocab; ++id) logits.push_back(normal(random));
  for (int64_t row = 0; row < batch.rows; ++row) {
    batch.rules[row].temperature = 0.8f;
    for (int32_t id = 0; id < kVocab; ++id) batch.set(row, id, logits[id]);
  }
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 0.8);
  std::vector<int> counts(kVocab);
  for (const int32_t id : run(batch).chosen) ++counts.at(id);
  for (int32_t id = 0; id < kVocab; ++id) {
    const double p = std::exp(logits[id] / 0.8) / total;
    const auto n = static_cast<double>(batch.rows);
    EXPECT_NEAR(counts[id], n * p, 4.5 * std::sqrt(n * p * (1 - p)) + 0.1) << "token " << id;
  }
}

TEST_F(TokenSamplerCuda, ReportsTheLowestRowWithANanAndChoosesInTheOthers) {
  for (const int32_t vocab_size : {9, 30'000}) {
    Batch batch = random_batch(DType::kBFloat16, 20, vocab_size, 7);
    for (auto& rule : batch.rules) rule.active = 1;
    batch.rules[2].active = 0;
    for (const int64_t row : {2, 5, 11}) batch.set(row, vocab_size - 1, std::nanf(""));
    batch.rules[5].temperature = 0;
    const ChosenTokens result = run(batch);
    EXPECT_EQ(result.fault, 5);
    for (int64_t row = 0; row < batch.rows; ++row) {
      const int32_t expected = row == 2 ? kOldToken : batch.choose_on_cpu(row);
      EXPECT_EQ(result.chosen[row], expected) << "row " << row;
    }
    EXPECT_EQ(result.chosen[5], -1);
    EXPECT_EQ(result.chosen[11], -1);
  }
}

TEST_F(TokenSamplerCuda, ChoosesTheBestTokenWhereTheLargestLogitIsInfinite) {
  Batch batch(DType::kFloat32, 3, 1'000);
  for (int64_t row = 0; row < 3; ++row) {
    batch.rules[row].temperature = row == 2 ? 0.0f : 1.0f;
    batch.rules[row].top_p = 0.5f;
    for (int32_t id = 0; id < 1'000; ++id) batch.set(row, id, row == 0 ? 1.0f : -INFINITY);
  }
  batch.set(0, 777, INFINITY);
  batch.set(0, 778, INFINITY);
  EXPECT_EQ(run(batch).chosen, (std::vector<int32_t>{777, 0, 0}));
}

TEST_F(TokenSamplerCuda, UsesTheSeenTokensOfTheRowThatSeenRowNames) {
  Batch batch(DType::kBFloat16, 3, 64);
  for (int64_t row = 0; row < 3; ++row) {
    batch.rules[row].repetition_penalty = 2;
    for (int32_t id = 0; id < 64; ++id) batch.set(row, id, id == 40 ? 4.0f : id == 50 ? 3.0f : -1.0f);
  }
  batch.see(0, 40);  // row 0 of seen is used by row 2 of the batch
  const ChosenTokens result = run(batch, 0, {1, 3, 0});
  EXPECT_EQ(result.chosen, (std::vector<int32_t>{40, -1, 50}));
  EXPECT_EQ(result.fault, 1) << "row 3 of seen does not exist";
  EXPECT_EQ(result.seen, (std::vector<uint32_t>{0, 1u << 8 | 1u << 18, 0, 1u << 8, 0, 0}));
}

TEST_F(TokenSamplerCuda, FeedsChosenTokensToTheirPlacesAmongIds) {
  for (const size_t tokens : {1, 6, 1000}) {
    std::vector<int32_t> ids(tokens), choices(tokens), chosen = {70, 71, -1};
    for (size_t i = 0; i < tokens; ++i) {
      ids[i] = static_cast<int32_t>(i);
      choices[i] = static_cast<int32_t>(i % 5) - 1;  // -1, 0, 1, 2, and 3, which there is not
    }
    GuardedArray device_ids(tokens * 4, 4), device_choices(tokens * 4, 4), device_chosen(3 * 4, 4);
    device_ids.upload(ids.data(), nullptr);
    device_choices.upload(choices.data(), nullptr);
    device_chosen.upload(chosen.data(), nullptr);
    feed_tokens_cuda({.tokens = static_cast<int64_t>(tokens),
                      .choices = static_cast<const int32_t*>(device_choices.data()),
                      .chosen = static_cast<const int32_t*>(device_chosen.data()),
                      .chosen_rows = 3,
                      .ids = static_cast<int32_t*>(device_ids.data())},
                     gpu_limits(), nullptr);
    const std::vector<unsigned char> bytes = device_ids.download(nullptr);
    std::vector<int32_t> fed(tokens);
    std::memcpy(fed.data(), bytes.data(), bytes.size());
    for (size_t i = 0; i < tokens; ++i) {
      const int32_t expected = i % 5 == 0 ? ids[i] : i % 5 == 4 ? INT32_MAX : chosen[i % 5 - 1];
      ASSERT_EQ(fed[i], expected) << i << " of " << tokens;
    }
    device_ids.expect_guards("ids", nullptr);
    device_chosen.expect_guards("chosen", nullptr);
  }
}

TEST_F(TokenSamplerCuda, MarksAndClearsSeenTokensOfARow) {
  constexpr int32_t kVocab = 100;  // four words
  const GuardedArray seen(3 * 4 * sizeof(uint32_t), 4);
  const GuardedArray ids(7 * sizeof(int32_t), 4), rows(7 * sizeof(int32_t), 4);
  const std::vector<int32_t> host_ids = {0, 31, 32, 99, 100, -1, 5}, host_rows = {0, 0, 1, 2, 2, 2, 3};
  seen.expect_guards("seen", nullptr);
  const_cast<GuardedArray&>(seen).fill(0, nullptr);
  const_cast<GuardedArray&>(ids).upload(host_ids.data(), nullptr);
  const_cast<GuardedArray&>(rows).upload(host_rows.data(), nullptr);
  auto* const bits = static_cast<uint32_t*>(seen.data());
  mark_seen_cuda({.tokens = 7,
                  .ids = static_cast<const int32_t*>(ids.data()),
                  .rows = static_cast<const int32_t*>(rows.data()),
                  .vocab_size = kVocab,
                  .seen = bits,
                  .seen_rows = 3},
                 gpu_limits(), nullptr);
  const auto words = [&] {
    const std::vector<unsigned char> bytes = seen.download(nullptr);
    std::vector<uint32_t> result(bytes.size() / 4);
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  };
  EXPECT_EQ(words(), (std::vector<uint32_t>{1u | 1u << 31, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 8}));
  clear_seen_cuda({.vocab_size = kVocab, .seen = bits, .seen_rows = 3, .row = 1}, nullptr);
  EXPECT_EQ(words(), (std::vector<uint32_t>{1u | 1u << 31, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8}));
  seen.expect_guards("seen", nullptr);
}

}  // namespace
}  // namespace allot::kernels
