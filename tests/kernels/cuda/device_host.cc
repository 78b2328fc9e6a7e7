#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "device.h"
#include "device_limits.h"
#include "emulated_kernels.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/stage_order.h"
#include "kernels/reference.h"
#include "tight_bounds.h"
#include "workspace_counters.h"

namespace allot::kernels::testing {
namespace {

using cuda::kScoreTile;

// What the score kernel leaves of a row: weights relative to their tile's largest score, in half precision
// and in stage order, each tile's largest score, in units of log2, with the sum of its weights, and in
// `norm_stats`, where that is not null, the sum and the largest of weight times norm.
void write_scores(const std::vector<double>& scores, const std::vector<float>& norms, cuda::TileStats* stats,
                  cuda::NormStats* norm_stats, uint16_t* weights) {
  const auto keys = static_cast<int32_t>(scores.size());
  for (int32_t tile = 0; tile < cuda::score_tiles(keys); ++tile) {
    const int32_t first = tile * kScoreTile;
    const int32_t count = std::min(kScoreTile, keys - first);
    const double largest = *std::max_element(scores.begin() + first, scores.begin() + first + count);
    float sum = 0;
    cuda::NormStats sizes = {0, 0};
    for (int32_t key = 0; key < kScoreTile; ++key) {
      const __half weight = __float2half(
          key < count ? static_cast<float>(std::exp(scores[static_cast<size_t>(first + key)] - largest))
                      : 0.0f);
      sum += __half2float(weight);
      if (norm_stats != nullptr && key < count) {
        const float size = __half2float(weight) * norms[static_cast<size_t>(first + key)];
        sizes = {.sum = sizes.sum + size, .max = std::max(sizes.max, size)};
      }
      std::memcpy(weights + first + cuda::stage_position(key), &weight, sizeof weight);
    }
    stats[tile] = {.max = static_cast<float>(largest * std::log2(std::exp(1.0))), .sum = sum};
    if (norm_stats != nullptr) norm_stats[tile] = sizes;
  }
}

}  // namespace

void DeviceTest::SetUp() {}

size_t device_repeats(size_t wanted) {
  return wanted / 25;
}

bool device_has_clusters() {
  return true;
}

std::vector<double> run_on_device(Launch& launch, KernelsOf kernels) {
  const LaunchBounds bounds = tight_bounds(launch.params);
  DeviceLimits limits = kH200;
  if (kernels == KernelsOf::kOlderDevices) limits.compute_capability = 80;
  if (kernels == KernelsOf::kOneMultiprocessor) limits.multiprocessors = 1;
  const cuda::Plan plan = cuda::make_plan(launch.params, bounds, limits);
  Elements out(launch.params.dtype, bounds.num_queries * launch.params.num_q_heads * launch.params.head_dim,
               std::nanf(""));
  // Everything but the counters is poison.
  std::vector<unsigned char> memory(static_cast<size_t>(plan.workspace_bytes) + cuda::kWorkspaceAlignment,
                                    0xFF);
  auto* const workspace = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + cuda::kWorkspaceAlignment - 1) /
      cuda::kWorkspaceAlignment * cuda::kWorkspaceAlignment);
  std::memset(workspace, 0, cuda::kHeaderBytes);

  cuda::Args args = cuda::make_args(launch.params, bounds, plan, workspace);
  args.announced = 0;  // all scores are there
  // Many rows discard their weights, so it is noticed who reads them afterwards.
  args.few_rows = kernels == KernelsOf::kOlderDevices;
  args.p.out = out.data();
  EmulatedLaunch emulated{.args = &args,
                          .estimator = launch.params.method.estimator,
                          .dtype = launch.params.dtype,
                          .head_dim = launch.params.head_dim,
                          .workers = static_cast<int>(plan.workers),
                          .row_tiles = plan.row_tiles,
                          .parts = plan.parts,
                          .cluster_blocks = plan.cluster_blocks,
                          .num_q_heads = launch.params.num_q_heads,
                          .num_kv_heads = launch.params.num_kv_heads,
                          .exact_column_tiles = plan.exact_decode.column_tiles,
                          .exact_threads = plan.exact_decode.threads,
                          .exact_shared_bytes = plan.exact_decode.shared_bytes,
                          .short_threads = plan.short_decode.threads,
                          .short_shared_bytes = plan.short_decode.shared_bytes};
  for (int32_t pass = 0; pass < plan.passes; ++pass) {
    args.first_query = pass * plan.pass_queries;
    args.pass_queries =
        static_cast<int32_t>(std::min<int64_t>(plan.pass_queries, bounds.num_queries - args.first_query));
    emulated.queries = args.pass_queries;
    if (args.row_table != nullptr)
      std::memset(args.row_table, 0xFF, static_cast<size_t>(plan.row_table_bytes));
    if (plan.exact_alone) {
      run_emulated_exact_decode(emulated);
      continue;
    }
    if (plan.short_decode.warps > 0) {
      run_emulated_short_decode(emulated);
      if (plan.exact_decode.warps > 0) run_emulated_exact_decode(emulated);
      continue;
    }
    const AttentionParams& p = launch.params;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t query = p.query_start[b]; query < p.query_start[b + 1]; ++query) {
        const int64_t slot = query - args.first_query;
        if (slot < 0 || slot >= args.pass_queries || (args.samples && p.budgets[b] == 0)) continue;
        for (int32_t head = 0; head < p.num_q_heads; ++head) {
          const int64_t first_tile = (slot * p.num_q_heads + head) * plan.row_tiles;
          const std::vector<double> scores = reference::scores(p, {b, query - p.query_start[b], head});
          std::vector<float> norms;
          for (int32_t key = 0; args.norm_stats != nullptr && key < std::ssize(scores); ++key) {
            const int64_t page = p.page_table[b * p.max_pages + key / p.page_size];
            const int64_t row = page * p.num_kv_heads + head / (p.num_q_heads / p.num_kv_heads);
            norms.push_back(p.value_norms[row * p.page_size + key % p.page_size]);
          }
          write_scores(scores, norms, args.stats + first_tile,
                       args.norm_stats == nullptr ? nullptr : args.norm_stats + first_tile,
                       args.weights + first_tile * kScoreTile);
        }
      }
    }
    if (args.pools != nullptr) run_emulated_pools(emulated);
    run_emulated_values(emulated);
    if (row_of(emulated.estimator).samples && plan.dense_left) {
      EmulatedLaunch dense = emulated;
      dense.estimator = Estimator::kExact;
      run_emulated_values(dense);
    }
    if (plan.exact_decode.warps > 0) run_emulated_exact_decode(emulated);
  }
  expect_counters_at_zero({workspace, static_cast<size_t>(plan.workspace_bytes)});
  std::vector<double> result;
  for (int64_t i = 0; i < out.count(); ++i) result.push_back(out.get(i));
  return result;
}

}  // namespace allot::kernels::testing
