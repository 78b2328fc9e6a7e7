// All keys with their own weights: estimator exact, and the sequences of a sampled launch whose
// budget is kDenseBudget.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

template <int kWarps>
class DenseSelection {
 public:
  static constexpr bool kDense = true;
  static constexpr bool kDraws = false;
  using Known = NothingKnown;
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t) { return 0; }

  __device__ __forceinline__ DenseSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                            char*, const Known&)
      : args_(args), row_(row), group_(group), masses_(group, row) {}

  __device__ __forceinline__ double total() const { return masses_.total; }

  __device__ __forceinline__ void fill(const Batch& batch) {
    const auto total = static_cast<float>(masses_.total);
    const auto* weights = reinterpret_cast<const __half*>(row_.weights);
#pragma unroll 1
    for (int32_t key = batch.low + group_.thread(); key < batch.high; key += group_.kThreads) {
      const int32_t tile = key / kScoreTile;
      const float weight =
          __half2float(weights[int64_t{tile} * kScoreTile + stage_position(key % kScoreTile)]);
      batch.put(key, {value_row_of(args_, row_, key),
                      weight * tile_scale(row_.stats[tile], masses_.largest) / total});
    }
  }

 private:
  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
};

template <class T, int kHeadDim>
ValueKernel exact_kernel(Workers workers) {
  return value_kernel_of<DenseSelection, T, kHeadDim>(workers);
}

}  // namespace allot::kernels::cuda
