// Functions of the gate in a layer's MLP.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// The quotient is off by at most 2 units of float32's last place.
__device__ __forceinline__ float activate(Activation activation, float x) {
  if (activation == Activation::kReluSquared) {
    x = x < 0 ? 0 : x;  // NaN stays
    return x * x;
  }
  return __fdividef(x, 1 + fast_exp2(x * -kLog2E));
}

}  // namespace allot::kernels::cuda
