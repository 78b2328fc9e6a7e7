// The value kernels of one family and dtype.
#pragma once

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/value_kernel.cuh"

namespace allot::kernels::cuda {

template <template <int> class Selection, class T, int kHeadDim, int kWarps>
ValueKernel make_value_kernel() {
  return {.function = value_kernel<Selection<kWarps>, T, kHeadDim, kWarps>,
          .threads = ValueShape<kWarps>::kThreads,
          .rows = ValueShape<kWarps>::kRows,
          .row_bytes = [](int32_t tiles, int32_t) { return Selection<kWarps>::shared_bytes(tiles); }};
}

template <template <int> class Selection, class T, int kWarps>
ValueKernel value_kernel_of(int32_t head_dim) {
  switch (head_dim) {
    case 32:
      return make_value_kernel<Selection, T, 32, kWarps>();
    case 64:
      return make_value_kernel<Selection, T, 64, kWarps>();
    case 96:
      return make_value_kernel<Selection, T, 96, kWarps>();
    case 128:
      return make_value_kernel<Selection, T, 128, kWarps>();
    case 256:
      return make_value_kernel<Selection, T, 256, kWarps>();
    default:
      return {};
  }
}

template <template <int> class Selection, class T>
ValueKernel value_kernel_of(int32_t head_dim, int32_t row_warps) {
  // Rows with all keys are never small.
  if constexpr (!Selection<8>::kDense) {
    if (row_warps == 1) return value_kernel_of<Selection, T, 1>(head_dim);
  }
  return value_kernel_of<Selection, T, 8>(head_dim);
}

}  // namespace allot::kernels::cuda
