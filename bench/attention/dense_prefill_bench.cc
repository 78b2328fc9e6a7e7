// Times the exact attention of a chunk of a long prompt on the current GPU, a layer of the shape of
// Llama-3.1-8B in bfloat16: LibTorch's FlashAttention behind model/cuda/dense_prefill.h, the gathering of the
// cache that goes before it, and attend_cuda over the pages. Median, least and most time of direct calls
// between two events, after warm-ups, over warm caches; for attention the products of the scores and values
// that are visible over that time.
//
//     dense_prefill_bench
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "bench/attention/device.h"
#include "bench/attention/stream_timer.h"
#include "bench/output.h"
#include "kernels/bfloat16.h"
#include "kernels/rows_cuda.h"
#include "model/cuda/dense_prefill.h"

namespace allot::bench::attention {
namespace {

using kernels::AttentionParams;
using kernels::DType;

constexpr int32_t kNumQHeads = 32, kNumKvHeads = 8, kHeadDim = 128, kPageSize = 16;
constexpr int64_t kWidth = int64_t{kNumQHeads} * kHeadDim;
constexpr int64_t kKvWidth = int64_t{kNumKvHeads} * kHeadDim;
constexpr int64_t kQueryStride = kWidth + 2 * kKvWidth;  // as a fused projection leaves it
constexpr int32_t kNewTokens = 2048;
constexpr int kWarmups = 3;
constexpr int kRuns = 20;

// Normal bfloat16 numbers; a million different ones, repeated.
std::vector<uint16_t> random_bfloat16(int64_t count, uint32_t seed) {
  constexpr int64_t kDifferent = (int64_t{1} << 20) - 3;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = i < kDifferent ? kernels::bfloat16_from_float(normal(random)) : values[i - kDifferent];
  }
  return values;
}

template <class T>
DeviceBytes copied(const std::vector<T>& values) {
  return to_device(std::span<const T>(values));
}

const Table& table() {
  static const Table columns({{"call", -48},
                              {"median us", 10, 1},
                              {"least us", 10, 1},
                              {"most us", 10, 1},
                              {"TB/s", 8, 2},
                              {"TFLOP/s", 9, 2}});
  return columns;
}

enum class Work : uint8_t { kBytes, kOperations };

// Prints a line; `work` bytes or operations of a call are shown in units of 10^12 a second.
void time(const StreamTimer& timer, const std::string& name, double work, Work of,
          const std::function<void()>& queue) {
  const WarmTimes times = timer.time(name, queue);
  const double rate = work / times.median / 1e6;
  const Cell none(std::optional<double>{});
  fmt::print(
      "{}", table().line({name, times.median, times.least, times.most, of == Work::kBytes ? Cell(rate) : none,
                          of == Work::kOperations ? Cell(rate) : none}));
  std::fflush(stdout);
}

int64_t free_bytes() {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for free device memory");
  return static_cast<int64_t>(free);
}

// Root of the mean squared difference of two outputs over the root of the mean square of the second.
double relative_difference(const DeviceBytes& a, const DeviceBytes& b) {
  std::vector<uint16_t> x(a.size() / sizeof(uint16_t)), y(x.size());
  check(cudaMemcpy(x.data(), a.data(), a.size(), cudaMemcpyDeviceToHost), "copy an output");
  check(cudaMemcpy(y.data(), b.data(), b.size(), cudaMemcpyDeviceToHost), "copy an output");
  double difference = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = kernels::float_from_bfloat16(y[i]);
    const double distance = kernels::float_from_bfloat16(x[i]) - expected;
    difference += distance * distance;
    square += expected * expected;
  }
  return std::sqrt(difference / square);
}

// A chunk of new tokens that ends a sequence of `length`.
void measure(int32_t length, const kernels::DeviceLimits& limits, const model::cuda::DensePrefill& prefill,
             const StreamTimer& timer) {
  const int32_t num_pages = (length + kPageSize - 1) / kPageSize;
  std::vector<int32_t> page_table(static_cast<size_t>(num_pages));
  std::iota(page_table.begin(), page_table.end(), 0);
  std::shuffle(page_table.begin(), page_table.end(), std::mt19937(2));
  const DeviceBytes query = copied(random_bfloat16(kNewTokens * kQueryStride, 1)),
                    key_pages = copied(random_bfloat16(num_pages * kPageSize * kKvWidth, 2)),
                    value_pages = copied(random_bfloat16(num_pages * kPageSize * kKvWidth, 3)),
                    keys(length * kKvWidth * sizeof(uint16_t)), values(keys.size()),
                    table = copied(page_table), lengths = copied(std::vector<int32_t>{length}),
                    query_start = copied(std::vector<int64_t>{0, kNewTokens}),
                    cum_queries = copied(std::vector<int32_t>{0, kNewTokens}),
                    cum_keys = copied(std::vector<int32_t>{0, length}),
                    flash_out(kNewTokens * kWidth * sizeof(uint16_t)), exact_out(flash_out.size());
  const float scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
  const auto integers = [](const DeviceBytes& bytes) { return static_cast<const int32_t*>(bytes.data()); };

  const auto gather = [&] {
    kernels::gather_cache_cuda({.sequences = 1,
                                .total_keys = length,
                                .num_kv_heads = kNumKvHeads,
                                .head_dim = kHeadDim,
                                .page_size = kPageSize,
                                .max_pages = num_pages,
                                .num_pages = num_pages,
                                .dtype = DType::kBFloat16,
                                .key_pages = key_pages.data(),
                                .value_pages = value_pages.data(),
                                .page_table = integers(table),
                                .cum_keys = integers(cum_keys),
                                .keys = keys.data(),
                                .values = values.data()},
                               limits, timer.stream());
  };
  const auto flash = [&] {
    prefill.attend({.sequences = 1,
                    .tokens = kNewTokens,
                    .total_keys = length,
                    .max_queries = kNewTokens,
                    .max_keys = length,
                    .num_q_heads = kNumQHeads,
                    .num_kv_heads = kNumKvHeads,
                    .head_dim = kHeadDim,
                    .dtype = DType::kBFloat16,
                    .scale = scale,
                    .query = query.data(),
                    .query_stride = kQueryStride,
                    .keys = keys.data(),
                    .values = values.data(),
                    .cum_queries = integers(cum_queries),
                    .cum_keys = integers(cum_keys),
                    .out = flash_out.data()},
                   timer.stream());
  };
  const AttentionParams params{.batch = 1,
                               .num_q_heads = kNumQHeads,
                               .num_kv_heads = kNumKvHeads,
                               .head_dim = kHeadDim,
                               .page_size = kPageSize,
                               .max_pages = num_pages,
                               .num_pages = num_pages,
                               .dtype = DType::kBFloat16,
                               .scale = scale,
                               .query = query.data(),
                               .query_stride = kQueryStride,
                               .key_pages = key_pages.data(),
                               .value_pages = value_pages.data(),
                               .page_table = integers(table),
                               .query_start = static_cast<const int64_t*>(query_start.data()),
                               .lengths = integers(lengths),
                               .out = exact_out.data()};
  const kernels::LaunchBounds bounds{
      .num_queries = kNewTokens, .max_queries = kNewTokens, .max_length = length};
  const DeviceBytes memory(kernels::cuda_workspace_bytes(params, bounds, limits));
  const kernels::CudaWorkspace workspace{memory.data(), memory.size()};
  kernels::reset_cuda_workspace(workspace, timer.stream());

  // Query i of n sees length - n + 1 + i keys; a key takes 2 operations an element for its score and 2 for
  // its value.
  const double visible =
      (length - kNewTokens) * double{kNewTokens} + kNewTokens * (double{kNewTokens} + 1) / 2;
  const double operations = 4.0 * kWidth * visible;
  const double gathered = 2.0 * static_cast<double>(keys.size() + values.size());  // read and written
  time(timer, fmt::format("gather_cache of {}", length), gathered, Work::kBytes, gather);
  time(timer, fmt::format("FlashAttention {} of {}", kNewTokens, length), operations, Work::kOperations,
       flash);
  time(timer, fmt::format("gather_cache and FlashAttention {} of {}", kNewTokens, length), operations,
       Work::kOperations, [&] {
         gather();
         flash();
       });
  time(timer, fmt::format("attend_cuda exact {} of {}", kNewTokens, length), operations, Work::kOperations,
       [&] { kernels::attend_cuda(params, bounds, limits, workspace, timer.stream()); });
  kernels::check_cuda(workspace, timer.stream());
  fmt::print("  difference of the outputs, relative rms {:.2g}\n", relative_difference(flash_out, exact_out));
}

void run() {
  int device = 0;
  check(cudaGetDevice(&device), "ask for the current device");
  const kernels::DeviceLimits limits = kernels::device_limits(device);
  const int64_t free_before = free_bytes();
  const auto prefill = model::cuda::DensePrefill::load(device);
  fmt::print("loading LibTorch's CUDA part takes {} MB of device memory\n",
             (free_before - free_bytes()) / 1'000'000);
  const StreamTimer timer(kWarmups, kRuns);
  fmt::print("{}", table().head());
  for (const int32_t length : {2048, 8192, 30720}) measure(length, limits, *prefill, timer);
  const int64_t free_after = free_bytes();
  prefill->release_memory();
  fmt::print("LibTorch kept {} MB for later calls, which release_memory gives back\n",
             (free_bytes() - free_after) / 1'000'000);
}

}  // namespace
}  // namespace allot::bench::attention

int main() {
  try {
    allot::bench::attention::run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "dense_prefill_bench: {}\n", error.what());
    return 1;
  }
}
