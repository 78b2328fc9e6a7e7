// The head dimensions that CUDA kernels are compiled for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace allot::kernels::cuda {

template <int kHeadDim>
using HeadDim = std::integral_constant<int, kHeadDim>;

// What `of` returns for HeadDim<head_dim>; an empty Kernel where none is compiled.
template <class Kernel, class Of>
Kernel of_head_dim(int32_t head_dim, const Of& of) {
  switch (head_dim) {
    case 32:
      return of(HeadDim<32>{});
    case 64:
      return of(HeadDim<64>{});
    case 96:
      return of(HeadDim<96>{});
    case 128:
      return of(HeadDim<128>{});
    case 256:
      return of(HeadDim<256>{});
    default:
      return {};
  }
}

// The same of those that kernels for split keys are compiled for.
template <class Kernel, class Of>
Kernel of_split_head_dim(int32_t head_dim, const Of& of) {
  switch (head_dim) {
    case 64:
      return of(HeadDim<64>{});
    case 128:
      return of(HeadDim<128>{});
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
