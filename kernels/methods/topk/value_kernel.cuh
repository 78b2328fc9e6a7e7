// The S keys of largest probability, renormalised (S2ANTA paper, Appendix H); of equal ones the first. The
// S-th largest weight is found digit by digit of its bits, which for positive floats are in the order of the
// numbers. A baseline: rows are read in passes, one for each digit.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

template <int kWarps>
class TopkSelection {
  static constexpr int kDigitBits = 8;
  static constexpr int kBins = 1 << kDigitBits;
  struct Search {
    int32_t bins[kBins];  // keys with that digit, among those that agree with the digits found so far
    uint32_t least;       // of the bits of what is kept
    int32_t left;         // keys to take of those that agree so far
  };

 public:
  static constexpr bool kDense = false;
  static constexpr bool kDraws = false;
  using Known = NothingKnown;
  // Of every tile: what is kept of weights above the least, how many those are, and how many are equal to it.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return (sizeof(Search) + int64_t{tiles} * (sizeof(float) + 2 * sizeof(int32_t)) + 15) / 16 * 16;
  }

  __device__ __forceinline__ TopkSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                           char* shared, const Known&)
      : args_(args),
        row_(row),
        group_(group),
        masses_(group, row),
        search_(*reinterpret_cast<Search*>(shared)),
        kept_mass_(reinterpret_cast<float*>(shared + sizeof(Search))),
        above_(reinterpret_cast<int32_t*>(kept_mass_ + row.tiles)),
        equal_(above_ + row.tiles) {
    if (!isfinite(masses_.total)) return;
    find_least();
    count_tiles();
  }

  __device__ __forceinline__ double total() const { return masses_.total; }

  // Slots: the keys that are kept, in order. Where there are fewer, the others stay empty.
  __device__ __forceinline__ void fill(const Batch& batch) {
    for_each_tile([&](int32_t tile, int part, const uint32_t(&bits)[8]) {
      int32_t above = 0;
      int32_t equal = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        above += bits[k] > least_;
        equal += bits[k] == least_;
      }
      int32_t above_before = above;
      int32_t equal_before = equal;
#pragma unroll
      for (int d = 1; d < kTileLanes; d *= 2) {
        const int32_t more_above = __shfl_up_sync(kFullWarp, above_before, d, kTileLanes);
        const int32_t more_equal = __shfl_up_sync(kFullWarp, equal_before, d, kTileLanes);
        if (part >= d) {
          above_before += more_above;
          equal_before += more_equal;
        }
      }
      if (above + equal == 0) return;
      above_before += above_[tile] - above;
      equal_before += equal_[tile] - equal;
      const uint32_t first =
          value_row_of(args_, row_, tile * kScoreTile + 8 * part);  // eight keys lie in one page
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const bool keep = bits[k] > least_ || (bits[k] == least_ && equal_before < equals_);
        const int32_t slot = above_before + min(equal_before, equals_);
        if (keep && slot >= batch.low && slot < batch.high)
          batch.put(slot, {first + k, __uint_as_float(bits[k]) * inverse_kept_});
        above_before += bits[k] > least_;
        equal_before += bits[k] == least_;
      }
    });
#pragma unroll 1
    for (int32_t slot = max(batch.low, kept_) + group_.thread(); slot < batch.high; slot += group_.kThreads)
      batch.put(slot, {0, 0});
  }

 private:
  // Calls use(tile, part, bits) for every tile that may hold keys of at least least_, eight lanes a tile; all
  // lanes of a warp call together. Bits are of weights relative to the row's largest, 0 of keys without any.
  template <class Use>
  __device__ __forceinline__ void for_each_tile(Use use) const {
    const int part = group_.lane() % kTileLanes;
    constexpr int kGroups = RowGroup<kWarps>::kThreads / kTileLanes;
#pragma unroll 1
    for (int32_t base = group_.warp() * (32 / kTileLanes); base < row_.tiles; base += kGroups) {
      const int32_t tile = min(base + group_.lane() / kTileLanes, row_.tiles - 1);
      const float scale = tile_scale(row_.stats[tile], masses_.largest);
      const bool valid =
          base + group_.lane() / kTileLanes < row_.tiles && scale > 0 && __float_as_uint(scale) >= least_;
      if (!__any_sync(kFullWarp, valid)) continue;
      uint32_t bits[8] = {};
      if (valid) {
        float weights[8];
        load_eight(row_, tile, part, weights);
#pragma unroll
        for (int k = 0; k < 8; ++k) bits[k] = __float_as_uint(weights[k] * scale);
      }
      use(tile, part, bits);
    }
  }

  // The bits of the S-th largest weight, and how many keys of just these bits are kept. Where fewer keys have
  // any weight, all of those are kept.
  __device__ __forceinline__ void find_least() {
    least_ = 1;
    int32_t left = row_.budget;
    uint32_t found = 0;
#pragma unroll 1
    for (int shift = 32 - kDigitBits; shift >= 0; shift -= kDigitBits) {
#pragma unroll 1
      for (int bin = group_.thread(); bin < kBins; bin += group_.kThreads) search_.bins[bin] = 0;
      group_.sync();
      for_each_tile([&](int32_t, int, const uint32_t(&bits)[8]) {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const bool agrees = shift == 32 - kDigitBits || bits[k] >> (shift + kDigitBits) == found;
          if (bits[k] > 0 && agrees) atomicAdd(&search_.bins[bits[k] >> shift & (kBins - 1)], 1);
        }
      });
      group_.sync();
      if (group_.warp() == 0) choose_digit(left);
      group_.sync();
      found = found << kDigitBits | search_.least;
      left = search_.left;
      group_.sync();
      if (left < 0) {  // all are kept
        least_ = 0;
        equals_ = 0;
        return;
      }
      least_ = max(1u, found << shift);
    }
    least_ = found;
    equals_ = left;
  }

  // The digit in which the `left`-th largest key falls, and how many keys of it that leaves; -1 where there
  // are fewer keys. Lane l has the bins 8 l .. 8 l + 8.
  __device__ __forceinline__ void choose_digit(int32_t left) {
    constexpr int kOwn = kBins / 32;
    const int lane = group_.lane();
    int32_t own = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) own += search_.bins[kOwn * lane + i];
    int32_t from_here = own;  // keys in this lane's bins and those above
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int32_t above = __shfl_down_sync(kFullWarp, from_here, d);
      if (lane + d < 32) from_here += above;
    }
    const int32_t all = __shfl_sync(kFullWarp, from_here, 0);
    if (all < left) {
      if (lane == 0) search_.left = -1;
      return;
    }
    int32_t above = from_here - own;
    if (above >= left || from_here < left) return;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i) {
      const int32_t count = search_.bins[kOwn * lane + i];
      if (above < left && above + count >= left) {
        search_.least = static_cast<uint32_t>(kOwn * lane + i);
        search_.left = left - above;
      }
      above += count;
    }
  }

  // What the tiles keep, then how many keys above and equal to the least lie below each.
  __device__ __forceinline__ void count_tiles() {
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      kept_mass_[t] = 0;
      above_[t] = equal_[t] = 0;
    }
    group_.sync();
    for_each_tile([&](int32_t tile, int part, const uint32_t(&bits)[8]) {
      float mass = 0;
      int32_t above = 0;
      int32_t equal = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        above += bits[k] > least_;
        equal += bits[k] == least_ && least_ > 0;
        mass += bits[k] > least_ ? __uint_as_float(bits[k]) : 0.0f;
      }
#pragma unroll
      for (int d = 1; d < kTileLanes; d *= 2) {
        mass += __shfl_xor_sync(kFullWarp, mass, d);
        above += __shfl_xor_sync(kFullWarp, above, d);
        equal += __shfl_xor_sync(kFullWarp, equal, d);
      }
      if (part == 0 && above + equal > 0) {
        kept_mass_[tile] = mass;
        above_[tile] = above;
        equal_[tile] = equal;
      }
    });
    group_.sync();
    double mass = 0;
    int32_t above = 0;
    int32_t equal = 0;
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      mass += static_cast<double>(kept_mass_[t]);
      above += above_[t];
      equal += equal_[t];
    }
    const double kept = group_.prefix(mass).total + equals_ * static_cast<double>(__uint_as_float(least_));
    inverse_kept_ = static_cast<float>(1 / kept);
    kept_ = group_.sum(above) + equals_;
    int32_t above_below = group_.prefix(above);
    int32_t equal_below = group_.prefix(equal);
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      const int32_t own_above = above_[t];
      const int32_t own_equal = equal_[t];
      above_[t] = above_below;
      equal_[t] = equal_below;
      above_below += own_above;
      equal_below += own_equal;
    }
    group_.sync();
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
  Search& search_;
  float* const kept_mass_;  // [tiles]
  int32_t* const above_;    // [tiles]
  int32_t* const equal_;    // [tiles]
  uint32_t least_ = 0;      // bits of the least weight that is kept
  int32_t equals_ = 0;      // keys of that weight that are kept
  int32_t kept_ = 0;
  float inverse_kept_ = 0;  // 1 / the kept mass
};

template <class T, int kHeadDim>
ValueKernel topk_kernel(Workers /*workers*/) {
  return make_value_kernel<TopkSelection, T, kHeadDim, 8, false>();
}

}  // namespace allot::kernels::cuda
