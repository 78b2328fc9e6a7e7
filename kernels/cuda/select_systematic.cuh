// Systematic samples over a whole row: estimator sys (S2ANTA paper, Appendix A.3). The n-th key gets
// floor(S P_n + u) - floor(S P_{n-1} + u) samples, so the prefix of the score tiles alone says which tiles
// have any, and only their weights are read.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

// Fills the entries of one listed tile with its systematic samples. All lanes of a warp call; `valid` tells
// whether this lane's group of eight has a tile.
__device__ __forceinline__ void put_systematic(const Args& args, const ValueRow& row, const Batch& batch,
                                               const TileDraw& draw, bool valid, int part) {
  int32_t units[8] = {};
  uint32_t first_row = 0;
  if (valid) {
    load_weights(row, draw.tile, part, units);
    first_row = first_value_row(args, row, draw.tile, part);
  }
  int32_t sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += units[k];
  const TilePrefix prefix = tile_prefix(sum, part);
  if (!valid) return;
  const float rate = draw.rate * kWeightUnit;
  // The tile's last weight takes what rounding left over; prefix.total > 0 because its maximum is 1.
  const auto samples_until = [&](int32_t x) {
    return x == prefix.total
               ? draw.count
               : min(draw.count, static_cast<int32_t>(fmaf(rate, static_cast<float>(x), draw.phase)));
  };
  int32_t cumulative = prefix.before;
  int32_t done = cumulative == 0 ? 0 : samples_until(cumulative);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    cumulative += units[k];
    const int32_t until = cumulative == 0 ? 0 : samples_until(cumulative);
    if (until > done) batch.put(draw.first + done, until - done, first_row + k, draw.weight);
    done = until;
  }
}

// Lists score tiles [begin, end) that form (a thread's part of) a systematic draw. The draw takes `samples`
// over a mass of `total` with offset `u`; `before` is the mass below `begin`, `after` that below `end`;
// `last_tile` is where the draw ends.
struct SystematicDraw {
  double total;
  int32_t samples;
  float u;
  int32_t first_slot;
  int32_t last_tile;
  float weight;
};
template <class Masses>
__device__ __forceinline__ void list_systematic(const ValueRow& row, const Batch& batch, const Masses& masses,
                                                const SystematicDraw& d, int32_t begin, int32_t end,
                                                double before, double after) {
  const double rate = d.samples / d.total;
  double mass = before;
  double x = mass * rate + d.u;
#pragma unroll 1
  for (int32_t t = begin; t < end; ++t) {
    mass = t + 1 == end ? after : mass + masses.mass(row, t);
    const double next =
        t == d.last_tile ? d.samples + static_cast<double>(d.u) : fma(mass, rate, double{d.u});
    const auto first = min(d.samples, static_cast<int32_t>(x));
    const auto until = min(d.samples, static_cast<int32_t>(next));
    if (until > first) {
      batch.list({t, d.first_slot + first, until - first, static_cast<float>(x - first),
                  static_cast<float>(rate) * masses.tile_scale(row, t), d.weight},
                 until - first);
    }
    x = next;
  }
}

// Calls put(draw, valid, part) for the batch's listed tiles, eight lanes a tile, all lanes of a warp
// together.
template <int kWarps, class Put>
__device__ __forceinline__ void for_each_listed(const RowGroup<kWarps>& group, const Batch& batch, Put put) {
  const int32_t listed = *batch.draw_count;
  constexpr int kGroups = RowGroup<kWarps>::kThreads / kTileLanes;
#pragma unroll 1
  for (int32_t base = group.warp() * (32 / kTileLanes); base < listed; base += kGroups) {
    const int32_t i = base + group.lane() / kTileLanes;
    put(batch.draws[min(i, listed - 1)], i < listed, group.lane() % kTileLanes);
  }
}

template <int kWarps>
class SystematicSelection {
 public:
  // Dynamic shared bytes a row needs.
  static constexpr bool kDense = false;  // serves the rows with a budget
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t) { return 0; }

  __device__ __forceinline__ SystematicSelection(const Args& args, const ValueRow& row,
                                                 RowGroup<kWarps>& group, char*)
      : args_(args), row_(row), group_(group), masses_(group, row), u_(draw_uniform(row.draws, kRowDraw)) {}

  __device__ __forceinline__ double total() const { return masses_.total(); }

  __device__ __forceinline__ void fill(const Batch& batch) {
    list_systematic(row_, batch, masses_,
                    {total(), row_.budget, u_, 0, row_.tiles - 1, 1.0f / static_cast<float>(row_.budget)},
                    masses_.begin, masses_.end, masses_.prefix.before, masses_.prefix.with_own);
    group_.sync();
    for_each_listed(group_, batch, [&](const TileDraw& draw, bool valid, int part) {
      put_systematic(args_, row_, batch, draw, valid, part);
    });
  }

 private:
  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
  const float u_;
};

}  // namespace allot::kernels::cuda
