// The value kernels of a selection, by the warps that share a row.
#pragma once

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/value_kernel.cuh"

namespace allot::kernels::cuda {

template <template <int> class Selection, class T, int kHeadDim, int kWarps, bool kCorrected>
ValueKernel make_value_kernel() {
  return {.function = value_kernel<Selection<kWarps>, T, kHeadDim, kWarps, kCorrected>,
          .threads = ValueShape<kWarps>::kThreads,
          .rows = ValueShape<kWarps>::kRows,
          .row_bytes = [](int32_t tiles, int32_t) { return Selection<kWarps>::shared_bytes(tiles); }};
}

// kCorrected where keys are split and have a low plane.
template <template <int> class Selection, class T, int kHeadDim, bool kCorrected = false>
ValueKernel value_kernel_of(Workers workers) {
  // Rows with all keys are never small.
  if constexpr (!Selection<8>::kDense) {
    if (workers == Workers::kWarp) return make_value_kernel<Selection, T, kHeadDim, 1, kCorrected>();
  }
  return make_value_kernel<Selection, T, kHeadDim, 8, kCorrected>();
}

}  // namespace allot::kernels::cuda
