// An element of an array whose dtype is known only when the program runs.
#pragma once

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/estimator.h"
#include "kernels/float16.h"

namespace allot::kernels {

inline float element(const void* data, DType dtype, int64_t index) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kBFloat16 ? float_from_bfloat16(bits) : float_from_float16(bits);
}

}  // namespace allot::kernels
