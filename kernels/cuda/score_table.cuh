// The score kernels of one dtype.
#pragma once

#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/score_kernel.cuh"

namespace allot::kernels::cuda {

template <class Products, ScoreUse kUse>
ScoreKernel make_score_kernel_of() {
  using Shape = ScoreShape<Products, kUse>;
  return {score_kernel<Products, kUse>, score_shared_bytes<Shape>(1, 0) - score_shared_bytes<Shape>(0, 0),
          score_shared_bytes<Shape>(0, 0), score_shared_bytes<Shape>(0, 1) - score_shared_bytes<Shape>(0, 0)};
}

template <class T, int kHeadDim, int kColumnTiles, ScoreUse kUse>
ScoreKernel make_score_kernel() {
  return make_score_kernel_of<KeyProducts<T, kHeadDim, kColumnTiles>, kUse>();
}

template <class T, int kHeadDim>
ScoreKernel score_kernel_of(int32_t column_tiles, ScoreUse use) {
  // If it were wider, the queries of head_dim 256 alone would fill the registers.
  constexpr int kPrefillTiles = kHeadDim <= 128 ? 4 : 2;
  using enum ScoreUse;
  switch (use) {
    case kPrefill:
      if (column_tiles == kPrefillTiles) return make_score_kernel<T, kHeadDim, kPrefillTiles, kPrefill>();
      break;
    case kDecode:
      if (column_tiles == 1) return make_score_kernel<T, kHeadDim, 1, kDecode>();
      if (column_tiles == 2) return make_score_kernel<T, kHeadDim, 2, kDecode>();
      break;
    case kDecodeWithNorms:
      if (column_tiles == 1) return make_score_kernel<T, kHeadDim, 1, kDecodeWithNorms>();
      if (column_tiles == 2) return make_score_kernel<T, kHeadDim, 2, kDecodeWithNorms>();
      break;
  }
  return {};
}

template <class T>
ScoreKernel score_kernel_of(int32_t head_dim, int32_t column_tiles, ScoreUse use) {
  return of_head_dim<ScoreKernel>(head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) {
    return score_kernel_of<T, kHeadDim>(column_tiles, use);
  });
}

}  // namespace allot::kernels::cuda
