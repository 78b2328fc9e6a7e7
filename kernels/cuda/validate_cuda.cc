// Host checks of a CUDA launch. The content of device arrays is checked by the
// kernels themselves (kernels/cuda/sequences.cuh).
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "kernels/attention_cuda.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/plan.h"
#include "kernels/sampling.h"

namespace allot::kernels {
namespace {

// With at most this many query heads, the counters in the workspace's header suffice for a pass
// of many queries.
constexpr int32_t kMaxQueryHeads = 1024;
static_assert(cuda::kMaxRows / kMaxQueryHeads >= 1024);

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument("attention on CUDA: " + fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void unsupported(fmt::format_string<Args...> text, Args&&... args) {
  throw Unsupported("attention on CUDA: " + fmt::format(text, std::forward<Args>(args)...));
}

void check_pointer(const void* pointer, const char* field, uintptr_t alignment) {
  if (pointer == nullptr) refuse("{} is null; it must point to device memory", field);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    refuse("{} is at address {}, which is not a multiple of {} bytes", field, pointer, alignment);
  }
}

void check_support(const AttentionParams& p, const DeviceLimits& limits) {
  if (limits.compute_capability < 80) {
    unsupported("the device has compute capability {}.{}; 8.0 or newer is needed",
                limits.compute_capability / 10, limits.compute_capability % 10);
  }
  if (p.dtype == DType::kFloat32) unsupported("dtype float32 has no CUDA kernel; use bfloat16 or float16");
  if (p.head_dim != 32 && p.head_dim != 64 && p.head_dim != 96 && p.head_dim != 128 && p.head_dim != 256) {
    unsupported("head_dim {} has no kernel; 32, 64, 96, 128 and 256 have", p.head_dim);
  }
  if (p.page_size < cuda::kStageKeys || p.page_size % cuda::kStageKeys != 0) {
    unsupported("page_size is {}; pages hold a multiple of {} tokens", p.page_size, cuda::kStageKeys);
  }
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (group > 16) {
    unsupported("{} query heads over {} KV heads are {} in a head group; at most 16 are supported",
                p.num_q_heads, p.num_kv_heads, group);
  }
}

void check_shapes(const AttentionParams& p) {
  if (p.batch < 0 || p.batch > kMaxCudaBatch) {
    refuse("batch is {}; expected 0 to {} sequences", p.batch, kMaxCudaBatch);
  }
  if (p.num_kv_heads < 1 || p.num_q_heads < p.num_kv_heads || p.num_q_heads % p.num_kv_heads != 0 ||
      p.num_q_heads > kMaxQueryHeads) {
    refuse("{} query heads over {} KV heads; expected a positive multiple, at most {} query heads",
           p.num_q_heads, p.num_kv_heads, kMaxQueryHeads);
  }
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (p.first_head < 0 || p.first_head % group != 0 || p.first_head > 65536 - p.num_q_heads) {
    refuse(
        "first_head is {} for {} query heads; expected a multiple of {}, the query heads of a KV head, and "
        "at most {}",
        p.first_head, p.num_q_heads, group, 65536 - p.num_q_heads);
  }
  if (p.max_pages < 0 || p.num_pages < 0) {
    refuse("max_pages is {} and num_pages is {}; expected 0 or more", p.max_pages, p.num_pages);
  }
  if (p.page_size > 0 && p.num_pages * p.num_kv_heads * p.page_size > int64_t{UINT32_MAX}) {
    refuse("the pool has {} pages x {} KV heads x {} tokens = {} rows; at most {} can be addressed",
           p.num_pages, p.num_kv_heads, p.page_size, p.num_pages * p.num_kv_heads * p.page_size, UINT32_MAX);
  }
  const int64_t row = int64_t{p.num_q_heads} * p.head_dim;
  if (p.query_stride < row || p.query_stride % 8 != 0) {
    refuse("query_stride is {} elements; expected a multiple of 8, at least num_q_heads * head_dim = {}",
           p.query_stride, row);
  }
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    refuse("scale is {}; expected a positive finite number, usually 1 / sqrt(head_dim) = {}", p.scale,
           1 / std::sqrt(static_cast<double>(p.head_dim)));
  }
  if (p.layer >= kTokenLayer) refuse("layer is {}; expected less than {}", p.layer, kTokenLayer);
}

void check_bounds(const AttentionParams& p, const LaunchBounds& b) {
  if (b.num_queries < 0) refuse("num_queries is {}; expected 0 or more", b.num_queries);
  if (b.num_queries == 0) return;  // nothing is launched
  // Rows are counted in 32 bits.
  if (b.num_queries > INT32_MAX / p.num_q_heads) {
    refuse("num_queries is {} with {} query heads; expected at most {}, so split the launch", b.num_queries,
           p.num_q_heads, INT32_MAX / p.num_q_heads);
  }
  if (p.batch * p.num_kv_heads > cuda::kMaxPairs) {
    refuse("{} sequences of {} KV heads are {} pairs; at most {} fit in a launch", p.batch, p.num_kv_heads,
           p.batch * p.num_kv_heads, cuda::kMaxPairs);
  }
  if (b.max_queries < 1) refuse("max_queries is {}; expected at least 1", b.max_queries);
  if (b.num_queries > p.batch * int64_t{b.max_queries}) {
    refuse("num_queries is {}, more than {} sequences of at most {} queries have", b.num_queries, p.batch,
           b.max_queries);
  }
  if (b.max_length < 1 || b.max_length > kMaxCudaLength) {
    refuse("max_length is {}; expected 1 to {}", b.max_length, kMaxCudaLength);
  }
  if (int64_t{b.max_length} > int64_t{p.max_pages} * p.page_size) {
    refuse(
        "max_length is {}, but the page table has room for {} pages of {} tokens = {}; widen the table "
        "or lower max_length",
        b.max_length, p.max_pages, p.page_size, int64_t{p.max_pages} * p.page_size);
  }
  if (!row_of(p.method.estimator).samples) return;
  if (b.max_budget < 0 || b.max_budget > kMaxBudget) {
    refuse("max_budget is {}; expected 0 to {}", b.max_budget, kMaxBudget);
  }
}

void check_estimation(const AttentionParams& p) {
  for (const std::string& fault : estimator_faults(p.method))
    refuse("estimator {}: {}", name(p.method.estimator), fault);
  if (row_of(p.method.estimator).tiled &&
      (p.method.tile < cuda::kScoreTile || p.method.tile % cuda::kScoreTile != 0)) {
    refuse("estimator {} has tiles of {} keys; expected a multiple of {}", name(p.method.estimator),
           p.method.tile, cuda::kScoreTile);
  }
  if (p.method.score_stage != ScoreStage::kExact) {
    if (p.method.score_budget < 1 || p.method.score_budget > kMaxBudget) {
      refuse("score stage {} has budget {}; expected 1 to {}", name(p.method.score_stage),
             p.method.score_budget, kMaxBudget);
    }
  } else if (p.method.mean_group_query) {
    refuse("mean_group_query is set with the exact score stage; it needs bernoulli or bernoulli-strat");
  }
}

// What of a launch with split keys has no kernel.
void check_split(const AttentionParams& p, const LaunchBounds& b, const DeviceLimits& limits) {
  if (p.split.high == nullptr) {
    if (p.split.low != nullptr) refuse("split.low is set without split.high");
    return;
  }
  if (p.head_dim != 64 && p.head_dim != 128)
    unsupported("head_dim {} has no kernel for split keys; 64 and 128 have", p.head_dim);
  if (p.method.score_stage != ScoreStage::kExact)
    unsupported("score stage {} has no kernel for split keys; use exact", name(p.method.score_stage));
  const bool samples = row_of(p.method.estimator).samples;
  if (!samples && p.key_pages != nullptr) {
    refuse("split.high is set for exact attention alone, and key_pages, too; set one of them");
  }
  const cuda::Workers workers = cuda::Workers::kBlock;
  if (samples && cuda::value_kernel(p, workers).function == nullptr) {
    unsupported(
        "estimator {} has no kernel for split keys; exact, iid, strat, sys, threshold, joint, pooled and "
        "level have",
        name(p.method.estimator));
  }
  if (uses_value_norms(p.method) && limits.compute_capability < 90) {
    unsupported(
        "norms of values have no kernel for split keys before compute capability 9.0, the device has {}.{}; "
        "use 16-bit keys or value-norms 0",
        limits.compute_capability / 10, limits.compute_capability % 10);
  }
  if (b.num_queries > 0 && (b.max_queries != 1 || b.num_queries != p.batch)) {
    unsupported("{} queries of {} sequences have no kernel for split keys; each sequence must have one",
                b.num_queries, p.batch);
  }
  if (b.num_queries > 0 && (b.any_dense || !samples) && !cuda::has_exact_decode(p, limits)) {
    unsupported(
        "exact attention of some of {} sequences with split keys does not fit the device's {} bytes "
        "of shared memory a block; launch fewer sequences together",
        p.batch, limits.shared_bytes_per_block);
  }
}

// Checks everything that a plan depends on.
void check_plan(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits) {
  check_shapes(p);
  check_support(p, limits);
  check_bounds(p, bounds);
  check_estimation(p);
  check_split(p, bounds, limits);
  if (p.split.high != nullptr && cuda::make_plan(p, bounds, limits).norm_stats) {
    unsupported(
        "the norms of up to {} values beside split keys do not fit the device's {} bytes of shared memory a "
        "block; use 16-bit keys or value-norms 0",
        bounds.max_length, limits.shared_bytes_per_block);
  }
}

}  // namespace

void validate_cuda(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits) {
  check_plan(p, bounds, limits);
  if (bounds.num_queries == 0) return;
  if (p.split.high == nullptr || (bounds.any_dense && !attends_exactly_by_planes(p))) {
    check_pointer(p.query, "query", 16);
    check_pointer(p.key_pages, "key_pages", 16);
  }
  if (p.split.high != nullptr) {
    check_pointer(p.split.high, "split.high", 16);
    if (p.split.low != nullptr) check_pointer(p.split.low, "split.low", 16);
    check_pointer(p.split.query, "split.query", 16);
    check_pointer(p.split.query_units, "split.query_units", 4);
  }
  check_pointer(p.value_pages, "value_pages", 16);
  if (uses_value_norms(p.method)) check_pointer(p.value_norms, "value_norms", 16);
  check_pointer(p.page_table, "page_table", 4);
  check_pointer(p.query_start, "query_start", 8);
  check_pointer(p.lengths, "lengths", 4);
  check_pointer(p.out, "out", 16);
  if (row_of(p.method.estimator).samples) {
    check_pointer(p.budgets, "budgets", 4);
  }
  if (row_of(p.method.estimator).draws || p.method.score_stage != ScoreStage::kExact) {
    check_pointer(p.draws, "draws", 4);
  }
}

size_t cuda_workspace_bytes(const AttentionParams& p, const LaunchBounds& bounds,
                            const DeviceLimits& limits) {
  check_plan(p, bounds, limits);
  return static_cast<size_t>(cuda::make_plan(p, bounds, limits).workspace_bytes);
}

}  // namespace allot::kernels
