// The score kernels of one dtype.
#pragma once

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/score_kernel.cuh"

namespace allot::kernels::cuda {

template <class T, int kHeadDim, int kColumnTiles, bool kDecode>
ScoreKernel make_score_kernel() {
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  return {score_kernel<T, kHeadDim, kColumnTiles, kDecode>,
          score_shared_bytes<Shape>(1, 0) - score_shared_bytes<Shape>(0, 0), score_shared_bytes<Shape>(0, 0),
          score_shared_bytes<Shape>(0, 1) - score_shared_bytes<Shape>(0, 0)};
}

template <class T, int kHeadDim>
ScoreKernel score_kernel_of(int32_t column_tiles, bool decode) {
  // If it were wider, the queries of head_dim 256 alone would fill the registers.
  constexpr int kPrefillTiles = kHeadDim <= 128 ? 4 : 2;
  if (decode && column_tiles == 1) return make_score_kernel<T, kHeadDim, 1, true>();
  if (decode && column_tiles == 2) return make_score_kernel<T, kHeadDim, 2, true>();
  if (!decode && column_tiles == kPrefillTiles) return make_score_kernel<T, kHeadDim, kPrefillTiles, false>();
  return {};
}

template <class T>
ScoreKernel score_kernel_of(int32_t head_dim, int32_t column_tiles, bool decode) {
  switch (head_dim) {
    case 32:
      return score_kernel_of<T, 32>(column_tiles, decode);
    case 64:
      return score_kernel_of<T, 64>(column_tiles, decode);
    case 96:
      return score_kernel_of<T, 96>(column_tiles, decode);
    case 128:
      return score_kernel_of<T, 128>(column_tiles, decode);
    case 256:
      return score_kernel_of<T, 256>(column_tiles, decode);
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
