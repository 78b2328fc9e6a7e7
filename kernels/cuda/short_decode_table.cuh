// The kernels for short rows of one dtype.
#pragma once

#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/short_decode.h"
#include "kernels/cuda/short_decode_kernel.cuh"
#include "kernels/methods/targets/value_kernel.cuh"
#include "kernels/methods/threshold/value_kernel.cuh"

namespace allot::kernels::cuda {

template <class Selection, class T, int kHeadDim>
ShortDecodeKernel make_short_decode_kernel() {
  return {.function = short_decode_kernel<Selection, T, kHeadDim>,
          .fewest_warps = ShortDecoder<T, kHeadDim, Selection>::kFewestWarps,
          .warp_bytes = [](int32_t tiles, int32_t group) {
            using Shape = ShortDecodeShape<T, kHeadDim, Selection>;
            return Shape::Ring::kBytes + Shape::row_bytes(tiles, group);
          }};
}

template <class T, int kHeadDim>
ShortDecodeKernel short_decode_kernel_of(Estimator estimator) {
  switch (estimator) {
    case Estimator::kIid:
    case Estimator::kStrat:
    case Estimator::kSys:
      return make_short_decode_kernel<TargetSelection<1>, T, kHeadDim>();
    case Estimator::kThreshold:
      return make_short_decode_kernel<ThresholdSelection<1>, T, kHeadDim>();
    default:
      return {};
  }
}

template <class T>
ShortDecodeKernel short_decode_kernel_of(Estimator estimator, int32_t head_dim) {
  return of_head_dim<ShortDecodeKernel>(head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) {
    return short_decode_kernel_of<T, kHeadDim>(estimator);
  });
}

}  // namespace allot::kernels::cuda
