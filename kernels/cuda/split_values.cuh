// The value kernels of one dtype for split keys with a low plane.
#pragma once

#include "kernels/cuda/head_dims.h"
#include "kernels/methods/shared/value_kernel.cuh"
#include "kernels/methods/targets/value_kernel.cuh"
#include "kernels/methods/threshold/value_kernel.cuh"

namespace allot::kernels::cuda {

template <class T, int kHeadDim>
ValueKernel split_value_kernel_of(Estimator estimator, Workers workers) {
  switch (estimator) {
    case Estimator::kIid:
    case Estimator::kStrat:
    case Estimator::kSys:
      return value_kernel_of<TargetSelection, T, kHeadDim, true>(workers);
    case Estimator::kThreshold:
      return value_kernel_of<ThresholdSelection, T, kHeadDim, true>(workers);
    case Estimator::kJoint:
    case Estimator::kPooled:
    case Estimator::kLevel:
      return shared_kernel<T, kHeadDim, true>(workers);
    default:
      return {};
  }
}

template <class T>
ValueKernel split_value_kernel_of(Estimator estimator, int32_t head_dim, Workers workers) {
  return of_split_head_dim<ValueKernel>(head_dim, [=]<int kHeadDim>(HeadDim<kHeadDim>) {
    return split_value_kernel_of<T, kHeadDim>(estimator, workers);
  });
}

}  // namespace allot::kernels::cuda
