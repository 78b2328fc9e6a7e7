// Attention on a GPU behind kernels that let it start long before they end.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_launch.h"
#include "kernels/attention_cuda.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::CudaTest;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::random_elements;
using testing::require;

constexpr DType kType = DType::kBFloat16;
constexpr int32_t kHeads = 8, kKvHeads = 2, kHeadDim = 128, kPageSize = 16, kPages = 40;
constexpr int64_t kBatch = 3;
constexpr int32_t kWidth = 1 << 22;

class Upload {
 public:
  Upload(const void* data, size_t bytes, cudaStream_t stream) : array_(bytes, 16) {
    array_.upload(data, stream);
    require(cudaStreamSynchronize(stream), "upload");
  }
  Upload(const Elements& elements, cudaStream_t stream)
      : Upload(elements.bytes().data(), elements.bytes().size(), stream) {}
  template <class X>
  Upload(const std::vector<X>& values, cudaStream_t stream)
      : Upload(values.data(), values.size() * sizeof(X), stream) {}
  template <class X>
  X* as() const {
    return static_cast<X*>(array_.data());
  }
  GuardedArray& array() { return array_; }

 private:
  GuardedArray array_;
};

// One block norms a row of 8 MB, about a millisecond, whose last elements are the queries; then a gather
// writes the lengths or the budgets. Both let the next kernel start at their beginning.
TEST_F(CudaTest, AttentionWaitsForSlowKernelsThatWriteItsQueriesLengthsAndBudgets) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const Upload row(random_elements(kType, kWidth, 1), stream), ones(Elements(kType, kWidth, 1), stream);
  Upload normed(Elements(kType, kWidth, NAN), stream);
  const int64_t cache = int64_t{kBatch} * kPages * kKvHeads * kPageSize * kHeadDim;
  const Upload keys(random_elements(kType, cache, 2), stream),
      values(random_elements(kType, cache, 3), stream);
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < kBatch * kPages; ++i) pages.push_back(i);
  const Upload page_table(pages, stream);
  const Upload query_start(std::vector<int64_t>{0, 1, 2, 3}, stream);
  const Upload draws(std::vector<SequenceDraws>(kBatch), stream);
  // Copied bit by bit: the gather takes them for floats.
  const std::vector<int32_t> counts = {600, 17, 333, 40, 9, 1};  // lengths, then budgets
  const Upload source(counts, stream), all(std::vector<int32_t>{0, 1, 2, 3, 4, 5}, stream);
  Upload gathered(std::vector<int32_t>(counts.size(), -7), stream);
  const int64_t out_elements = kBatch * kHeads * kHeadDim;
  Upload out(Elements(kType, out_elements, NAN), stream);

  AttentionParams p{.batch = kBatch,
                    .num_q_heads = kHeads,
                    .num_kv_heads = kKvHeads,
                    .head_dim = kHeadDim,
                    .page_size = kPageSize,
                    .max_pages = kPages,
                    .num_pages = kBatch * kPages,
                    .dtype = kType,
                    .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
                    .query = normed.as<uint16_t>() + kWidth - out_elements,
                    .query_stride = kHeads * kHeadDim,
                    .key_pages = keys.as<void>(),
                    .value_pages = values.as<void>(),
                    .page_table = page_table.as<int32_t>(),
                    .query_start = query_start.as<int64_t>(),
                    .lengths = gathered.as<int32_t>(),
                    .out = out.as<void>()};
  for (const ScoreStage stage : {ScoreStage::kExact, ScoreStage::kBernoulli}) {
    for (const Estimator estimator : {Estimator::kExact, Estimator::kSys}) {
      for (const int64_t batch : {int64_t{1}, kBatch}) {
        SCOPED_TRACE("stage " + std::to_string(static_cast<int>(stage)) + ", estimator " +
                     std::to_string(static_cast<int>(estimator)) + ", batch " + std::to_string(batch));
        p.batch = batch;
        p.method.estimator = estimator;
        p.method.score_stage = stage;
        p.method.score_budget = stage == ScoreStage::kExact ? 0 : 4;
        const bool random = estimator != Estimator::kExact || stage != ScoreStage::kExact;
        p.draws = random ? draws.as<SequenceDraws>() : nullptr;
        p.budgets = estimator == Estimator::kExact ? nullptr : gathered.as<int32_t>() + kBatch;
        const LaunchBounds bounds{
            .num_queries = batch, .max_queries = 1, .max_length = 640, .max_budget = 64, .any_dense = false};
        const size_t bytes = cuda_workspace_bytes(p, bounds, gpu_limits());
        const GuardedArray memory(bytes, 256);
        const CudaWorkspace workspace{.data = memory.data(), .bytes = bytes};
        reset_cuda_workspace(workspace, stream);
        const auto run = [&](const std::function<void()>& between) {
          normed.array().fill(0xFF, stream);
          gathered.array().fill(0xFF, stream);
          out.array().fill(0xFF, stream);
          rms_norm_cuda({.rows = 1,
                         .width = kWidth,
                         .dtype = kType,
                         .epsilon = 1e-6f,
                         .input = row.as<void>(),
                         .weight = ones.as<void>(),
                         .out = normed.as<void>()},
                        gpu_limits(), stream);
          between();
          gather_rows_cuda({.rows = static_cast<int64_t>(counts.size()),
                            .width = 1,
                            .source_rows = static_cast<int64_t>(counts.size()),
                            .dtype = DType::kFloat32,
                            .source = source.as<void>(),
                            .indices = all.as<int32_t>(),
                            .out = gathered.as<void>()},
                           gpu_limits(), stream);
          between();
          attend_cuda(p, bounds, gpu_limits(), workspace, stream);
          check_cuda(workspace, stream);
          return out.array().download(stream);
        };
        const std::vector<unsigned char> expected =
            run([&] { require(cudaStreamSynchronize(stream), "a kernel"); });
        ASSERT_FALSE(std::isnan(Elements(kType, expected).get(0)));
        for (int i = 0; i < 3; ++i) ASSERT_EQ(run([] {}), expected) << "run " << i;
      }
    }
  }
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

// As in a decode step: what slow kernels before write are the queries and the last position's keys and
// values, and all else was there before. Until then these are NaN.
TEST_F(CudaTest, AttentionOverSettledKeysWaitsForItsQueriesAndTheLastPositions) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const Upload row(random_elements(kType, kWidth, 1), stream), ones(Elements(kType, kWidth, 1), stream);
  Upload normed(Elements(kType, kWidth, NAN), stream);
  constexpr int64_t kPageRows = int64_t{kKvHeads} * kPageSize;
  constexpr int64_t kCache = int64_t{kBatch} * kPages * kPageRows * kHeadDim;
  const std::vector<int32_t> lengths = {600, 17, 336};  // within a page, its first, its last
  const auto last_page = [&](int64_t b) { return b * kPages + (lengths[b] - 1) / kPageSize; };
  struct Cache {
    Elements before;  // without the last position
    Upload whole, used;
  };
  const auto make_cache = [&](uint32_t seed) {
    const Elements whole = random_elements(kType, kCache, seed);
    Elements before = whole;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t head = 0; head < kKvHeads; ++head) {
        const int64_t at = last_page(b) * kPageRows + head * kPageSize + (lengths[b] - 1) % kPageSize;
        for (int64_t i = 0; i < kHeadDim; ++i) before.set(at * kHeadDim + i, NAN);
      }
    }
    return Cache{before, Upload(whole, stream), Upload(before, stream)};
  };
  Cache keys = make_cache(2), values = make_cache(3);
  std::vector<int32_t> pages;
  for (int32_t i = 0; i < kBatch * kPages; ++i) pages.push_back(i);
  std::vector<int32_t> rows_of_pages;  // of each sequence's last page
  for (int64_t b = 0; b < kBatch; ++b) {
    for (int64_t i = 0; i < kPageRows; ++i)
      rows_of_pages.push_back(static_cast<int32_t>(last_page(b) * kPageRows + i));
  }
  const Upload page_table(pages, stream), page_rows(rows_of_pages, stream);
  const Upload query_start(std::vector<int64_t>{0, 1, 2, 3}, stream);
  const Upload draws(std::vector<SequenceDraws>(kBatch), stream);
  const Upload device_lengths(lengths, stream), budgets(std::vector<int32_t>{40, 9, 1}, stream);
  const int64_t out_elements = kBatch * kHeads * kHeadDim;
  Upload out(Elements(kType, out_elements, NAN), stream);
  AttentionParams p{.num_q_heads = kHeads,
                    .num_kv_heads = kKvHeads,
                    .head_dim = kHeadDim,
                    .page_size = kPageSize,
                    .max_pages = kPages,
                    .num_pages = kBatch * kPages,
                    .dtype = kType,
                    .scale = 1 / std::sqrt(static_cast<float>(kHeadDim)),
                    .query = normed.as<uint16_t>() + kWidth - out_elements,
                    .query_stride = kHeads * kHeadDim,
                    .key_pages = keys.used.as<void>(),
                    .value_pages = values.used.as<void>(),
                    .page_table = page_table.as<int32_t>(),
                    .query_start = query_start.as<int64_t>(),
                    .lengths = device_lengths.as<int32_t>(),
                    .out = out.as<void>()};
  for (const Estimator estimator : {Estimator::kExact, Estimator::kSys, Estimator::kThreshold}) {
    for (const int64_t batch : {int64_t{1}, kBatch}) {
      SCOPED_TRACE("estimator " + std::to_string(static_cast<int>(estimator)) + ", batch " +
                   std::to_string(batch));
      p.batch = batch;
      p.method.estimator = estimator;
      p.draws = estimator == Estimator::kExact ? nullptr : draws.as<SequenceDraws>();
      p.budgets = estimator == Estimator::kExact ? nullptr : budgets.as<int32_t>();
      LaunchBounds bounds{.num_queries = batch, .max_queries = 1, .max_length = 640, .max_budget = 64};
      const size_t bytes = cuda_workspace_bytes(p, bounds, gpu_limits());
      const GuardedArray memory(bytes, 256);
      const CudaWorkspace workspace{.data = memory.data(), .bytes = bytes};
      reset_cuda_workspace(workspace, stream);
      const auto run = [&](const std::function<void()>& between) {
        normed.array().fill(0xFF, stream);
        keys.used.array().upload(keys.before.bytes().data(), stream);
        values.used.array().upload(values.before.bytes().data(), stream);
        out.array().fill(0xFF, stream);
        require(cudaStreamSynchronize(stream), "what is settled");
        rms_norm_cuda({.rows = 1,
                       .width = kWidth,
                       .dtype = kType,
                       .epsilon = 1e-6f,
                       .input = row.as<void>(),
                       .weight = ones.as<void>(),
                       .out = normed.as<void>()},
                      gpu_limits(), stream);
        between();
        for (int64_t b = 0; b < batch; ++b) {
          for (const Cache* cache : {&keys, &values}) {
            gather_rows_cuda({.rows = kPageRows,
                              .width = kHeadDim,
                              .source_rows = kBatch * kPages * kPageRows,
                              .dtype = kType,
                              .source = cache->whole.as<void>(),
                              .indices = page_rows.as<int32_t>() + b * kPageRows,
                              .out = cache->used.as<uint16_t>() + last_page(b) * kPageRows * kHeadDim},
                             gpu_limits(), stream);
            between();
          }
        }
        attend_cuda(p, bounds, gpu_limits(), workspace, stream);
        check_cuda(workspace, stream);
        return out.array().download(stream);
      };
      const std::vector<unsigned char> expected =
          run([&] { require(cudaStreamSynchronize(stream), "a kernel"); });
      const Elements numbers(kType, expected);
      for (int64_t i = 0; i < batch * kHeads * kHeadDim; ++i) ASSERT_FALSE(std::isnan(numbers.get(i))) << i;
      bounds.settled_keys = true;
      for (int i = 0; i < 3; ++i) ASSERT_EQ(run([] {}), expected) << "run " << i;
    }
  }
  require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

// The same norm writes the projection that a rotation at settled places reads.
TEST_F(CudaTest, RotationAtSettledPlacesWaitsForASlowKernelThatWritesItsProjection) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  const Upload row(random_elements(kType, kWidth, 1), stream), ones(Elements(kType, kWidth, 1), stream);
  Upload normed(Elements(kType, kWidth, NAN), stream);
  constexpr int64_t kTokens = 3, kStride = (kHeads + 2 * kKvHeads) * kHeadDim,
                    kFirst = kWidth - kTokens * kStride;
  const std::vector<float> cos(kTokens * kHeadDim / 2, 0.6f), sin(kTokens * kHeadDim / 2, 0.8f);
  const Upload cosines(cos, stream), sines(sin, stream);
  const Upload positions(std::vector<int32_t>{2, 0, 1}, stream),
      slots(std::vector<int64_t>{5, 20, 1}, stream);
  constexpr int64_t kCache = int64_t{2} * kKvHeads * kPageSize * kHeadDim;
  Upload keys(Elements(kType, kCache, NAN), stream), values(Elements(kType, kCache, NAN), stream);
  const RmsNormParams norm{.rows = 1,
                           .width = kWidth,
                           .dtype = kType,
                           .epsilon = 1e-6f,
                           .input = row.as<const void>(),
                           .weight = ones.as<const void>(),
                           .out = normed.as<void>()};
  const RotaryParams rotary{.tokens = kTokens,
                            .num_q_heads = kHeads,
                            .num_kv_heads = kKvHeads,
                            .head_dim = kHeadDim,
                            .dtype = kType,
                            .qkv = normed.as<char>() + kFirst * size_of(kType),
                            .qkv_stride = kStride,
                            .cos = cosines.as<const float>(),
                            .sin = sines.as<const float>(),
                            .table_rows = kTokens,
                            .positions = positions.as<const int32_t>(),
                            .key_pages = keys.as<void>(),
                            .value_pages = values.as<void>(),
                            .num_pages = 2,
                            .page_size = kPageSize,
                            .slots = slots.as<const int64_t>(),
                            .settled_places = true};
  // All bytes that the two kernels write, with a wait between them or without.
  const auto run = [&](bool waits) {
    for (Upload* written : {&normed, &keys, &values}) written->array().fill(0xFF, stream);
    rms_norm_cuda(norm, gpu_limits(), stream);
    if (waits) require(cudaStreamSynchronize(stream), "the norm");
    rotate_and_store_cuda(rotary, gpu_limits(), stream);
    std::vector<std::vector<unsigned char>> bytes;
    for (Upload* written : {&normed, &keys, &values}) bytes.push_back(written->array().download(stream));
    return bytes;
  };
  const auto expected = run(true);
  ASSERT_FALSE(std::isnan(Elements(kType, expected[1]).get(5 * kHeadDim)));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(false) == expected) << "run " << i;
  require(cudaStreamDestroy(stream), "the stream's end");
}

}  // namespace
}  // namespace allot::kernels
