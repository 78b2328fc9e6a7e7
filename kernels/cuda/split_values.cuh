// The value kernels of one dtype for split keys with a low plane.
#pragma once

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
    default:
      return {};
  }
}

template <class T>
ValueKernel split_value_kernel_of(Estimator estimator, int32_t head_dim, Workers workers) {
  switch (head_dim) {
    case 64:
      return split_value_kernel_of<T, 64>(estimator, workers);
    case 128:
      return split_value_kernel_of<T, 128>(estimator, workers);
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
