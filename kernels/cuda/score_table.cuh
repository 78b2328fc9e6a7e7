// The score kernels of one dtype.
#pragma once

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/score_kernel.cuh"

namespace allot::kernels::cuda {

template <class T, int kHeadDim, int kColumnTiles>
ScoreKernel make_score_kernel() {
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  return {score_kernel<T, kHeadDim, kColumnTiles>,
          score_shared_bytes<Shape>(1, 0) - score_shared_bytes<Shape>(0, 0), score_shared_bytes<Shape>(0, 0),
          score_shared_bytes<Shape>(0, 1) - score_shared_bytes<Shape>(0, 0)};
}

template <class T, int kHeadDim>
ScoreKernel score_kernel_of(int32_t column_tiles) {
  if (column_tiles == 1) return make_score_kernel<T, kHeadDim, 1>();
  if (column_tiles == 2) return make_score_kernel<T, kHeadDim, 2>();
  // Wider, the queries of head_dim 256 alone would fill the registers.
  if constexpr (kHeadDim <= 128) return make_score_kernel<T, kHeadDim, 4>();
  return {};
}

template <class T>
ScoreKernel score_kernel_of(int32_t head_dim, int32_t column_tiles) {
  switch (head_dim) {
    case 64:
      return score_kernel_of<T, 64>(column_tiles);
    case 96:
      return score_kernel_of<T, 96>(column_tiles);
    case 128:
      return score_kernel_of<T, 128>(column_tiles);
    case 256:
      return score_kernel_of<T, 256>(column_tiles);
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
