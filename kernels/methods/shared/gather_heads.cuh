// Adds up the value rows that the heads of a group read together, and corrects their weights where keys are
// split.
#pragma once

#include <type_traits>

#include "kernels/cuda/value_row.cuh"
#include "kernels/methods/shared/chosen_rows.cuh"

namespace allot::kernels::cuda {

// Adds weighted value rows for several heads at once. A warp reads a row together. kAhead: the rows to add
// next are asked for before the present ones are added, for some registers.
template <class T, int kHeadDim, int kHeads, bool kAhead = true>
class GatherHeads {
 public:
  // Consecutive elements of a lane; where head_dim is 96 the last lanes have none.
  static constexpr int kElements = kHeadDim == 96 ? 4 : kHeadDim / 32;

  // For `heads` of at most kHeads of a group, from its head number first_head on.
  __device__ __forceinline__ GatherHeads(const Args& args, const GroupRow& /*row*/, int32_t /*first_head*/,
                                         int32_t heads, int lane)
      : values_(static_cast<const T*>(args.p.value_pages)), heads_(heads), lane_(lane) {}

  // Asks for the first of a list's rows, whose weights need not be there yet.
  __device__ __forceinline__ void start(const RowList& list, int32_t count) {
    if constexpr (kAhead) load(list, 0, count);
  }
  // Corrects the list's weights, once they are there; nothing where scores are those of whole keys.
  __device__ __forceinline__ void correct(RowList& /*list*/, int32_t /*count*/) {}
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

// Of a head's rows that were read: the sum of their weights before and after these were corrected. Without
// initial values, since shared memory has none.
struct WeightSums {
  float before;
  float after;

  __device__ __forceinline__ WeightSums& operator+=(const WeightSums& other) {
    before += other.before;
    after += other.after;
    return *this;
  }
  // What makes sums of corrected weights and values the ratio estimate. Without weights they are zero.
  __device__ __forceinline__ float factor() const { return after == 0 ? 1.0f : before / after; }
};

// The same for split keys: the weight of each row is corrected by what the low plane of its key adds to the
// score (AttentionParams::split). 16 keys are the rows of a product, and its eight columns the two planes of
// four queries, as in split_products.cuh.
template <class T, int kHeadDim, int kHeads, bool kAhead = true>
class CorrectedGatherHeads : public GatherHeads<T, kHeadDim, kHeads, kAhead> {
  using Plain = GatherHeads<T, kHeadDim, kHeads, kAhead>;

 public:
  __device__ __forceinline__ CorrectedGatherHeads(const Args& args, const GroupRow& row, int32_t first_head,
                                                  int32_t heads, int lane)
      : Plain(args, row, first_head, heads, lane),
        args_(args),
        query_((int64_t{args.first_query} + row.query) * args.p.num_q_heads + row.head + first_head),
        heads_(heads),
        lane_(lane) {}

  __device__ __forceinline__ void correct(RowList& list, int32_t count) {
    const SplitKeys& split = args_.p.split;
#pragma unroll 1
    for (int32_t first = 0; first < count; first += 16) {
      const int32_t place = first + lane_ / 4;  // and eight places further
      uint4 keys[2][kChunks];
      float units[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = list.rows[min(place + 8 * half, count - 1)];
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
          keys[half][c] =
              *reinterpret_cast<const uint4*>(split.low + int64_t{row} * kHeadDim + lane_ % 4 * 16 + c * 64);
        units[half] = key_unit<kHeadDim>(split, row);
      }
#pragma unroll
      for (int r = 0; r < kHeads / 4; ++r) {
        if (4 * r >= heads_) break;
        // A head behind the last has the planes of the last; its weights are not used.
        const int8_t* const planes =
            split.query + (2 * query_of(4 * r + lane_ / 8) + lane_ / 4 % 2) * kHeadDim + lane_ % 4 * 16;
        int32_t sums[4] = {};
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const uint4 q = *reinterpret_cast<const uint4*>(planes + c * 64);
          const uint4 &a = keys[0][c], &b = keys[1][c];
          multiply_accumulate_bytes(sums, {a.x, b.x, a.y, b.y}, q.x, q.y);
          multiply_accumulate_bytes(sums, {a.z, b.z, a.w, b.w}, q.z, q.w);
        }
        const int column = 4 * r + lane_ % 4;
        const float unit = split.query_units[query_of(column)] * args_.p.scale * kLog2E / 65536;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& weight = list.weights[place + 8 * half][column];
          const float delta =
              static_cast<float>(256 * sums[2 * half] + sums[2 * half + 1]) * unit * units[half];
          const float before = place + 8 * half < count ? weight : 0.0f;
          const float after = before * fast_exp2(delta);
          weight = after;
          weights_[r] += {before, after};
        }
      }
    }
    __syncwarp();
  }

  // Of head low + lane % 4, low being a multiple of four below kHeads. All lanes call together.
  __device__ __forceinline__ WeightSums weights(int low) const {
    WeightSums sums = weights_[low / 4];
#pragma unroll
    for (int d = 4; d < 32; d *= 2)
      sums += {__shfl_xor_sync(kFullWarp, sums.before, d), __shfl_xor_sync(kFullWarp, sums.after, d)};
    return sums;
  }

 private:
  static constexpr int kChunks = kHeadDim / 64;  // of 64 bytes: two steps of the product

  __device__ __forceinline__ int64_t query_of(int32_t head) const {
    return query_ + min(head, heads_ - 1);
  }

  const Args& args_;
  const int64_t query_;  // of the first head, among all of the launch
  const int32_t heads_;
  const int lane_;
  WeightSums weights_[kHeads / 4] = {};
};

template <class T, int kHeadDim, int kHeads, bool kCorrected, bool kAhead = true>
using GatherHeadsOf = std::conditional_t<kCorrected, CorrectedGatherHeads<T, kHeadDim, kHeads, kAhead>,
                                         GatherHeads<T, kHeadDim, kHeads, kAhead>>;

// What the warps of a group have of some heads, in shared memory.
template <int kWarps, int kHeadDim, bool kCorrected = false>
struct WarpSums {
  static constexpr int kHeads = 4;

  float of_warps[kWarps][kHeads][kHeadDim];
  WeightSums of_weights[kCorrected ? kWarps : 1][kHeads];

  // Of the heads from `low` on of what a warp gathered.
  template <class Gather>
  __device__ __forceinline__ void leave(int warp, const Gather& gather, int low) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int e = 0; e < Gather::kElements; ++e)
        if (gather.active()) of_warps[warp][h][gather.element() + e] = gather.sum(low + h)[e];
    }
    if constexpr (kCorrected) {
      const WeightSums weights = gather.weights(low);
      if (threadIdx.x % 32 < kHeads) of_weights[warp][threadIdx.x % 32] = weights;
    }
  }
  // Of all warps, in order: element i of the heads, one after the other.
  __device__ __forceinline__ float sum(int i) const {
    float x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += of_warps[w][i / kHeadDim][i % kHeadDim];
    return x;
  }
  // Of one of the heads.
  __device__ __forceinline__ WeightSums weights(int head) const {
    WeightSums sums = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sums += of_weights[w][head];
    return sums;
  }
};

// Counts rows that a warp has read, where the launch asks for that.
__device__ __forceinline__ void count_rows(const Args& args, const GroupRow& row, int lane, int32_t read) {
  if (lane != 0 || args.p.rows_read == nullptr || read == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(&args.p.rows_read[row.sequence]),
            static_cast<unsigned long long>(read));
}

}  // namespace allot::kernels::cuda
