// A tile of the result has 128 rows and 128 features; for it a block multiplies 128 rows of the input with
// 128 rows of gate and, behind them, the same 128 of up. So the lane that has a sum of the one has that of
// the other, and the activation takes no exchange.
//
// One warpgroup copies, two multiply, each 64 rows. The two blocks of a cluster have different rows and the
// same features: each copies half of the weights, one gate and the other up, to both.
#include "kernels/gated_product_cuda.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/gated/hopper.cuh"
#include "kernels/cuda/gated/layout.h"
#include "kernels/cuda/gated/tensor_map.h"
#include "kernels/cuda/rows/activation.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"

namespace allot::kernels {
namespace cuda {
namespace {

// Pairs of rows that are worked on one after the other before the next features: so what a wave of blocks
// reads of input and weights stays in L2.
constexpr int32_t kPairsTogether = 8;

struct Tile {
  int32_t row = 0, feature = 0;  // its first
};

// Calls body(tile) for the tiles of this block, `rank` of its cluster: the pairs of kPairsTogether of the
// rows with the first features, with the next, and so on, before the next rows; clusters take pairs in turn.
template <class Body>
__device__ __forceinline__ void for_each_tile(const Extent& extent, int32_t rank, const Body& body) {
  const int32_t pairs = extent.row_pairs * extent.feature_tiles;
  const auto clusters = static_cast<int32_t>(gridDim.x) / kCluster;
  for (int32_t i = static_cast<int32_t>(blockIdx.x) / kCluster; i < pairs; i += clusters) {
    const int32_t band = i / (kPairsTogether * extent.feature_tiles), first = band * kPairsTogether;
    const int32_t together = min(kPairsTogether, extent.row_pairs - first);
    const int32_t in_band = i - first * extent.feature_tiles, feature = in_band / together;
    body(Tile{.row = ((first + in_band - feature * together) * kCluster + rank) * kTileRows,
              .feature = feature * kTileFeatures});
  }
}

// Places in shared memory.
struct Shared {
  uint32_t stages, out, full, empty;

  __device__ __forceinline__ uint32_t stage(int32_t i) const { return stages + i % kStages * kStageBytes; }
  __device__ __forceinline__ uint32_t full_barrier(int32_t i) const { return full + i % kStages * 8; }
  __device__ __forceinline__ uint32_t empty_barrier(int32_t i) const { return empty + i % kStages * 8; }
};

// One thread of a block: stages of all its tiles, one after the other.
__device__ __forceinline__ void copy_stages(const CUtensorMap& input, const CUtensorMap& weight,
                                            const Extent& extent, const Shared& shared, int32_t rank) {
  constexpr uint16_t kBoth = (1 << kCluster) - 1;
  int32_t stage = 0;
  for_each_tile(extent, rank, [&](const Tile& tile) {
    for (int32_t column = 0; column < extent.column_tiles; ++column, ++stage) {
      if (stage >= kStages) wait_at(shared.empty_barrier(stage), stage / kStages - 1);
      const uint32_t to = shared.stage(stage), full = shared.full_barrier(stage);
      arrive_expecting<kStageBytes>(full);
      copy_tile(to, input, column * kTileColumns, tile.row, full);
      copy_tile_to_blocks(to + (1 + rank) * kTileBytes, weight, column * kTileColumns,
                          tile.feature + rank * extent.width, full, kBoth);
    }
  });
}

// A warpgroup: 64 rows of each of the block's tiles.
template <class T>
__device__ __forceinline__ void multiply_stages(const CUtensorMap& out, const Extent& extent,
                                                const Shared& shared, int32_t rank, int32_t group) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) % 128, lane = thread % 32, warp = thread / 32;
  const uint32_t own = shared.out + group * kPanels * kPanelBytes;
  const auto free_stage = [&](int32_t stage) {
    if (thread < kCluster) arrive_at_block(shared.empty_barrier(stage), thread);
  };
  int32_t stage = 0;
  for_each_tile(extent, rank, [&](const Tile& tile) {
    float sums[kSums];
    for (int32_t column = 0; column < extent.column_tiles; ++column, ++stage) {
      wait_at(shared.full_barrier(stage), stage / kStages);
      const uint32_t at = shared.stage(stage);
      const uint64_t rows = tile_operand(at + group * kPanelBytes), weights = tile_operand(at + kTileBytes);
      begin_products();
#pragma unroll
      for (int k = 0; k < kTileColumns / 16; ++k)
        multiply_tiles<T>(sums, rows + k * kSixteenColumns, weights + k * kSixteenColumns,
                          column > 0 || k > 0);
      end_group_of_products();
      // Those of the stage before have ended then.
      wait_for_products<1>();
      if (column > 0) free_stage(stage - 1);
    }
    wait_for_sums(sums);
    free_stage(stage - 1);

    if (thread == 0) wait_until_tiles_are_read();
    meet_in_warpgroup(group);
    // Matrices of 8 x 8: of rows 0 and 8 of the warp's, of two neighbouring eights of features.
    const int32_t row = warp * 16 + lane % 16, eight = lane / 16;
#pragma unroll
    for (int j = 0; j < kTileFeatures / 8; j += 2) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int at = 4 * j + 2 * w;
        words[w] = pack<T>(activate(extent.activation, sums[at]) * sums[at + kSums / 2],
                           activate(extent.activation, sums[at + 1]) * sums[at + 1 + kSums / 2]);
      }
      const int32_t piece = j % 8 + eight;
      store_matrices(own + j / 8 * kPanelBytes + row * kTileRowBytes + (piece ^ row % 8) * 16, words);
    }
    show_to_copies();
    meet_in_warpgroup(group);
    if (thread == 0) {
      for (int panel = 0; panel < kPanels; ++panel) {
        store_tile(out, tile.feature + panel * kTileColumns, tile.row + group * kGroupRows,
                   own + panel * kPanelBytes);
      }
      end_group_of_stores();
    }
  });
  if (thread == 0) wait_until_tiles_are_read();
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1)
    gated_product(const __grid_constant__ CUtensorMap input, const __grid_constant__ CUtensorMap weight,
                  const __grid_constant__ CUtensorMap out, Extent extent) {
  ALLOT_DYNAMIC_SHARED(128, memory);
  const uint32_t begin = (shared_address(memory) + kAlignment - 1) / kAlignment * kAlignment;
  Shared shared{.stages = begin, .out = begin + kStages * kStageBytes};
  shared.full = shared.out + kOutBytes;
  shared.empty = shared.full + kStages * 8;
  if (threadIdx.x < kStages) {
    init_barrier(shared.full_barrier(threadIdx.x), 1);
    init_barrier(shared.empty_barrier(threadIdx.x), kGroups * kCluster);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  const auto rank = static_cast<int32_t>(blockIdx.x) % kCluster;
  const auto warpgroup = static_cast<int32_t>(threadIdx.x / 128);
  begin_overlapped();
  arrive_at_cluster();
  wait_for_cluster();
  if (warpgroup == 0) {
    keep_registers<40>();
    if (threadIdx.x == 0) copy_stages(input, weight, extent, shared, rank);
    __syncwarp();  // the others of its warp must not wait for the cluster meanwhile
  } else {
    take_registers<232>();
    multiply_stages<T>(out, extent, shared, rank, warpgroup - 1);
  }
  // A block that has ended has no shared memory for the other's copies and arrivals.
  arrive_at_cluster();
  wait_for_cluster();
}

template <class T>
void launch(const GatedProductParams& p, const DeviceLimits& limits, CudaStream stream) {
  const auto kernel = gated_product<T>;
  const Extent extent = extent_of(p);
  const int32_t clusters =
      std::min(extent.row_pairs * extent.feature_tiles, std::max(limits.multiprocessors / kCluster, 1));
  const auto map = [&](const void* data, int64_t rows, int32_t columns, int32_t tile_rows) {
    return tensor_map({.data = data,
                       .rows = rows,
                       .columns = columns,
                       .dtype = p.dtype,
                       .tile_rows = tile_rows,
                       .tile_columns = kTileColumns});
  };
  launch_overlapped(kernel,
                    {.rows = static_cast<uint32_t>(clusters * kCluster),
                     .threads = kThreads,
                     .cluster = kCluster,
                     .shared_bytes = kSharedBytes},
                    limits, stream, map(p.input, p.rows, p.in_features, kTileRows),
                    map(p.weight, 2 * int64_t{p.width}, p.in_features, kTileFeatures),
                    map(p.out, p.rows, p.width, kGroupRows), extent);
}

}  // namespace
}  // namespace cuda

void gated_product_cuda(const GatedProductParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p, limits);
  if (p.rows == 0) return;
  if (p.dtype == DType::kBFloat16) {
    cuda::launch<__nv_bfloat16>(p, limits, stream);
  } else {
    cuda::launch<__half>(p, limits, stream);
  }
}

}  // namespace allot::kernels
