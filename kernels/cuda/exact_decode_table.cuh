// The exact decode kernels of one dtype.
#pragma once

#include "kernels/cuda/exact_decode_kernel.cuh"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/kernel_table.h"

namespace allot::kernels::cuda {

template <class Keys>
ScoreKernel make_exact_decode_kernel() {
  using Shape = ExactDecodeShape<Keys>;
  constexpr int64_t kBlockBytes = exact_decode_shared_bytes<Shape>(0, 0);
  return {.function = exact_decode_kernel<Keys>,
          .warp_bytes = Shape::kWarpBytes,
          .block_bytes = kBlockBytes,
          .sequence_bytes = exact_decode_shared_bytes<Shape>(0, 1) - kBlockBytes,
          .most_warps = Shape::kWarps,
          .other_warps = kAddingWarps};
}

template <class T>
ScoreKernel exact_decode_kernel_of(int32_t head_dim, int32_t column_tiles) {
  return of_head_dim<ScoreKernel>(head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) {
    return column_tiles == 1 ? make_exact_decode_kernel<ExactKeys<T, kHeadDim, 1>>()
                             : make_exact_decode_kernel<ExactKeys<T, kHeadDim, 2>>();
  });
}

// The same over the planes of split keys.
template <class T>
ScoreKernel split_exact_decode_kernel_of(int32_t head_dim, int32_t column_tiles) {
  return of_split_head_dim<ScoreKernel>(head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) {
    return column_tiles == 1 ? make_exact_decode_kernel<ExactSplitKeys<T, kHeadDim, 1>>()
                             : make_exact_decode_kernel<ExactSplitKeys<T, kHeadDim, 2>>();
  });
}

}  // namespace allot::kernels::cuda
