// Adds up the value rows that the heads of a group read together.
#pragma once

#include <type_traits>

#include "kernels/methods/shared/chosen_rows.cuh"

namespace allot::kernels::cuda {

// Adds weighted value rows for several heads at once. A warp reads a row together. kAhead: the rows to add
// next are asked for before the present ones are added, for some registers.
template <class T, int kHeadDim, int kHeads, bool kAhead = true>
class GatherHeads {
 public:
  // Consecutive elements of a lane; where head_dim is 96 the last lanes have none.
  static constexpr int kElements = kHeadDim == 96 ? 4 : kHeadDim / 32;

  // `heads` of at most kHeads, from rows of `values`.
  __device__ __forceinline__ GatherHeads(const void* values, int32_t heads, int lane)
      : values_(static_cast<const T*>(values)), heads_(heads), lane_(lane) {}

  // Asks for the first of a list's rows, whose weights need not be there yet.
  __device__ __forceinline__ void start(const RowList& list, int32_t count) {
    if constexpr (kAhead) load(list, 0, count);
  }
  // Adds the rows of the list that was started.
  __device__ __forceinline__ void add(const RowList& list, int32_t count) {
#pragma unroll 1
    for (int32_t first = 0; first < count; first += kUnroll) {
      if constexpr (!kAhead) load(list, first, count);
      Raw raw[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) raw[u] = next_[u];
      if (kAhead && first + kUnroll < count) load(list, first + kUnroll, count);
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        if (h >= heads_) break;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const Vector value = *reinterpret_cast<const Vector*>(&raw[u]);
          const float4 w = *reinterpret_cast<const float4*>(&list.weights[first + u][h]);
          const float weights[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const float x = element_of(value, e);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum_[h + i][e] = fmaf(weights[i], x, sum_[h + i][e]);
          }
        }
      }
    }
  }

  // Of head h: this lane's elements.
  __device__ __forceinline__ const float (&sum(int h) const)[kElements] {
    return sum_[h];
  }

  __device__ __forceinline__ bool active() const {
    return lane_ * kElements < kHeadDim;
  }
  __device__ __forceinline__ int element() const {
    return lane_ * kElements;
  }

 private:
  static constexpr int kUnroll = kElements <= 4 ? 8 : 4;
  static_assert(RowList::kRows % kUnroll == 0);
  // A lane's elements as one load.
  using Raw = std::conditional_t<
      kElements == 1, uint16_t,
      std::conditional_t<kElements == 2, uint32_t, std::conditional_t<kElements == 4, uint2, uint4>>>;
  struct alignas(sizeof(Raw)) Vector {
    T elements[kElements];
  };
  __device__ __forceinline__ static float element_of(const Vector& v, int e) {
    return static_cast<float>(v.elements[e]);
  }

  __device__ __forceinline__ void load(const RowList& list, int32_t first, int32_t count) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      next_[u] = {};
      if (first + u < count && active())
        next_[u] = __ldg(
            reinterpret_cast<const Raw*>(values_ + int64_t{list.rows[first + u]} * kHeadDim + element()));
    }
  }

  const T* const values_;
  const int32_t heads_;
  const int lane_;
  Raw next_[kUnroll];
  float sum_[kHeads][kElements] = {};
};

// What the warps of a group have of some heads, in shared memory.
template <int kWarps, int kHeadDim>
struct WarpSums {
  static constexpr int kHeads = 4;

  float of_warps[kWarps][kHeads][kHeadDim];

  // Of the heads from `low` on of what a warp gathered.
  template <class Gather>
  __device__ __forceinline__ void leave(int warp, const Gather& gather, int low) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int e = 0; e < Gather::kElements; ++e)
        if (gather.active()) of_warps[warp][h][gather.element() + e] = gather.sum(low + h)[e];
    }
  }
  // Of all warps, in order: element i of the heads, one after the other.
  __device__ __forceinline__ float sum(int i) const {
    float x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += of_warps[w][i / kHeadDim][i % kHeadDim];
    return x;
  }
};

// Counts rows that a warp has read, where the launch asks for that.
__device__ __forceinline__ void count_rows(const Args& args, const GroupRow& row, int lane, int32_t read) {
  if (lane != 0 || args.p.rows_read == nullptr || read == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&args.p.rows_read[row.sequence]),
            static_cast<unsigned long long>(read));
}

}  // namespace allot::kernels::cuda
