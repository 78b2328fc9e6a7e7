// The Hadamard transform of a vector, as the rotation of split keys (split_keys.h) has it on the host.
#pragma once

#include <cstddef>
#include <span>

namespace allot::kernels {

// In place, without a factor: twice gives x.size() times the vector. x.size() is a power of two.
template <class T>
void hadamard(std::span<T> x) {
  for (size_t stride = 1; stride < x.size(); stride *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & stride) != 0) continue;
      const T a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
}

}  // namespace allot::kernels
