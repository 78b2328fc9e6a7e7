// A model over several ranks is the model: on the CPU, where ranks are threads (thread_collective.h), so that
// float32 shows more than the rounding of a GPU would.
#include "model/model_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "episode/samples.h"
#include "model/cpu_backend.h"
#include "model/engine.h"
#include "model/fidelity.h"
#include "model/split_backend.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/thread_collective.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::ThrowsMessage;

BackendMaker over(int32_t ranks) {
  return [ranks](const WeightsSource& source, const ModelConfig& config, const EngineOptions& options) {
    check_split(config, options.attention, ranks);
    const auto group = std::make_shared<ThreadGroup>(ranks);
    SplitBackendParts parts{
        .threads = std::make_unique<RankThreads>(ranks), .ranks = {}, .abort = [group] { group->abort(); }};
    for (int32_t rank = 0; rank < ranks; ++rank) {
      parts.ranks.push_back(make_cpu_rank(source, config, options, {rank, ranks}, group->of_rank(rank)));
    }
    return make_split_backend(std::move(parts));
  };
}

EngineOptions float_options(const kernels::AttentionMethod& attention = {}, int threads = 1) {
  EngineOptions options = small_engine();
  options.attention = attention;
  options.threads = threads;
  return options;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max<double>(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

std::vector<float> dense_logits(Engine& engine, const std::vector<int32_t>& ids) {
  return engine.logits(ids, {}, kKey, 0);
}

// Rows of logits with one that is more than `tolerance` away.
int64_t rows_that_differ(const std::vector<float>& a, const std::vector<float>& b, size_t rows,
                         float tolerance) {
  EXPECT_EQ(a.size(), b.size());
  const auto width = static_cast<int64_t>(a.size() / rows);
  const auto same = [&](float x, float y) { return std::abs(x - y) <= tolerance; };
  int64_t different = 0;
  for (int64_t row = 0; row < static_cast<int64_t>(rows); ++row) {
    const auto first = a.begin() + row * width;
    different += !std::equal(first, first + width, b.begin() + row * width, same);
  }
  return different;
}

// Models with biases of q, k, v and o, with norms of heads, tied and not, in one file and in several, with
// several numbers of heads in a group; and over how many ranks.
struct SplitCase {
  const char* name;
  int32_t ranks;
};
constexpr SplitCase kCases[] = {{"llama_group4", 2},
                                {"llama_tied", 2},
                                {"qwen3_group4_tied", 2},
                                {"qwen3_rope_bias", 3},
                                {"mistral_head64_group1", 2}};

class SplitModel : public testing::TestWithParam<SplitCase> {
 protected:
  static std::filesystem::path directory() { return kCheckpoints / GetParam().name; }
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, SplitModel, testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(SplitModel, HasTheLogitsOfTheWholeModel) {
  Engine whole(directory(), float_options());
  Engine split(directory(), float_options(), over(GetParam().ranks));
  const std::vector<int32_t> ids = random_prompt(3, 90);
  EXPECT_LE(largest_difference(dense_logits(split, ids), dense_logits(whole, ids)), 1e-4);
}

// With draws of each estimator, and of the score stage, under the numbers that heads have in the whole model.
// A rounding may move a draw to the next key, for which few of the rows may differ by more.
TEST_P(SplitModel, SamplesAsTheWholeModel) {
  for (const kernels::AttentionMethod& method : kernels::testing::every_method()) {
    if (method.estimator == Estimator::kPooled || method.estimator == Estimator::kExact) continue;
    Engine whole(directory(), float_options(method));
    Engine split(directory(), float_options(method), over(GetParam().ranks));
    const std::vector<int32_t> ids = random_prompt(4, 60);
    const std::vector<int32_t> samples(static_cast<size_t>(whole.config().num_layers), 9);
    const std::vector<float> expected = whole.logits(ids, samples, kKey, 5);
    const std::vector<float> logits = split.logits(ids, samples, kKey, 5);
    EXPECT_LE(rows_that_differ(logits, expected, ids.size(), 2e-3F), 3) << kernels::describe(method);
  }
}

TEST_P(SplitModel, GeneratesTheTokensOfTheWholeModel) {
  const auto run = [&](const BackendMaker* make) {
    EngineOptions options = float_options({.estimator = Estimator::kSys}, 2);
    options.max_sequences = 5;
    options.prefill_chunk_tokens = 40;
    auto engine = make == nullptr ? std::make_unique<Engine>(directory(), options)
                                  : std::make_unique<Engine>(directory(), options, *make);
    for (uint32_t i = 0; i < 8; ++i) {
      GenerationRequest request = request_of(i, random_prompt(i, 1 + 23 * i % 100), 20);
      request.key = kKey;
      request.question = i;
      const auto layers = static_cast<size_t>(engine->config().num_layers);
      if (i % 3 != 0) request.samples.assign(layers, static_cast<int32_t>(4 + i));
      if (i % 3 == 2) request.samples[0] = kExactLayer;
      if (i % 2 == 1) request.sampling = {.temperature = 0.8, .top_p = 0.9, .repetition_penalty = 1.2};
      engine->submit(std::move(request));
    }
    return tokens_of(run_to_end(*engine));
  };
  const BackendMaker make = over(GetParam().ranks);
  EXPECT_EQ(run(&make), run(nullptr));
}

// The biases of o and down are added once.
TEST(SplitModelOf, BiasesEverywhereIsTheWholeModel) {
  const CopiedCheckpoint copy(kCheckpoints / "llama_bias_sharded");
  copy.replace("config.json", "\"intermediate_size\": 56", "\"intermediate_size\": 54");
  EngineOptions options = float_options();
  options.random_weights = 7;
  Engine whole(copy.path(), options);
  Engine split(copy.path(), options, over(3));
  ASSERT_TRUE(whole.config().mlp_bias && whole.config().attention_output_bias);
  const std::vector<int32_t> ids = random_prompt(3, 50);
  EXPECT_LE(largest_difference(dense_logits(split, ids), dense_logits(whole, ids)), 1e-4);
}

// An update is added to the elements of the whole tensor that a rank has.
TEST(SplitModelOf, AnAdapterIsTheWholeModel) {
  EngineOptions options = float_options();
  options.adapter = kAdapters / "patterns";
  Engine whole(kCheckpoints / "qwen3_rope_bias", options);
  Engine split(kCheckpoints / "qwen3_rope_bias", options, over(3));
  Engine base(kCheckpoints / "qwen3_rope_bias", float_options());
  const std::vector<int32_t> ids = random_prompt(3, 50);
  EXPECT_LE(largest_difference(dense_logits(split, ids), dense_logits(whole, ids)), 1e-4);
  EXPECT_GT(largest_difference(dense_logits(base, ids), dense_logits(whole, ids)), 1e-2);
}

TEST(SplitModelOf, FourRanksIsTheWholeModelToo) {
  Engine whole(kTinyGsm, float_options({.estimator = Estimator::kThreshold}));
  Engine split(kTinyGsm, float_options({.estimator = Estimator::kThreshold}), over(4));
  const std::vector<int32_t> ids = random_prompt(3, 120);
  EXPECT_LE(largest_difference(dense_logits(split, ids), dense_logits(whole, ids)), 1e-3);
  std::vector<int32_t> samples(static_cast<size_t>(whole.config().num_layers), kExactLayer);
  samples[0] = 12;
  const std::vector<float> expected = whole.logits(ids, samples, kKey, 1);
  const auto differ = [&](const std::vector<float>& logits) {
    return rows_that_differ(logits, expected, ids.size(), 1e-2F);
  };
  // Where another order of a sum moves a draw, this row and those behind it differ by more.
  const auto rows = static_cast<int64_t>(ids.size());
  EXPECT_LE(differ(split.logits(ids, samples, kKey, 1)), rows / 4);
  EXPECT_GE(differ(whole.logits(ids, samples, kKey, 2)), rows - rows / 4) << "other draws";
}

TEST(SplitModelOf, RandomWeightsIsTheSameModel) {
  EngineOptions options = float_options();
  options.random_weights = 7;
  Engine whole(kTinyGsm, options);
  Engine split(kTinyGsm, options, over(4));
  const std::vector<int32_t> ids = random_prompt(3, 50);
  EXPECT_LE(largest_difference(dense_logits(split, ids), dense_logits(whole, ids)), 1e-4);
}

TEST(SplitModelOf, TwoRanksHasTheFidelityAndTheValueRowsOfTheWhole) {
  for (const Estimator estimator : {Estimator::kSys, Estimator::kJoint}) {
    const kernels::AttentionMethod method{.estimator = estimator};
    const FidelityText text{.ids = random_prompt(9, 80), .prompt_tokens = 30, .key = kKey, .question = 2};
    const std::vector<FidelityPair> pairs{{.samples = {8, 8}, .attention = method},
                                          {.samples = {20, 3}, .attention = method}};
    const FidelityOptions options{.mode = FidelityMode::kReply, .positions = true, .count_rows = true};
    Engine whole(kLlamaGroup4, float_options(method));
    Engine split(kLlamaGroup4, float_options(method), over(2));
    const auto expected = whole.fidelity({&text, 1}, pairs, options);
    const auto results = split.fidelity({&text, 1}, pairs, options);
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(results[i].rows_read, expected[i].rows_read);
      EXPECT_NEAR(results[i].divergence, expected[i].divergence, 1e-3 * expected[i].divergence);
      EXPECT_GT(expected[i].rows_read, 0);
    }
  }
}

TEST(SplitModelOf, WhatTheRanksDoNotDivideIsRefusedWithTheNumbers) {
  const ModelConfig config = read_model_config(kTinyGsm);  // 4 KV heads, 704 neurons
  EXPECT_NO_THROW(check_split(config, {}, 4));
  EXPECT_THAT([&] { check_split(config, {}, 3); },
              ThrowsMessage<Unsupported>(Names("3 devices", "4 KV heads")));
  ModelConfig narrow = config;
  narrow.intermediate_size = 702;
  EXPECT_THAT([&] { check_split(narrow, {}, 4); },
              ThrowsMessage<Unsupported>(Names("4 devices", "intermediate_size 702")));
  EXPECT_THAT([&] { check_split(config, {.estimator = Estimator::kPooled}, 2); },
              ThrowsMessage<Unsupported>(Names("2 devices", "pooled", "joint")));
  EXPECT_NO_THROW(check_split(config, {.estimator = Estimator::kPooled}, 1));
  EXPECT_THAT([&] { check_split(read_model_config(kCheckpoints / "bitnet_bias"), {}, 3); },
              ThrowsMessage<Unsupported>(Names("3 devices", "BitNetForCausalLM", "one device")));
}

TEST(SplitVocabulary, IsSharedOutInEights) {
  const auto parts = [](int32_t vocab_size, int32_t ranks) {
    std::vector<std::pair<int32_t, int32_t>> all;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const VocabularyPart part = vocabulary_part(vocab_size, {rank, ranks});
      EXPECT_EQ(part.stride % 8, 0);
      all.emplace_back(part.first, part.count);
    }
    return all;
  };
  using Parts = std::vector<std::pair<int32_t, int32_t>>;
  EXPECT_EQ(parts(128256, 4), (Parts{{0, 32064}, {32064, 32064}, {64128, 32064}, {96192, 32064}}));
  EXPECT_EQ(parts(99, 4), (Parts{{0, 32}, {32, 32}, {64, 32}, {96, 3}}));
  EXPECT_EQ(parts(10, 4), (Parts{{0, 8}, {8, 2}, {10, 0}, {10, 0}}));
  EXPECT_EQ(parts(99, 1), (Parts{{0, 99}}));
}

}  // namespace
}  // namespace allot::model
