// What the heads of a group read together, once it is known which rows are kept and where targets fall: the
// lists of rows with their weights. Shared by the selections from long rows (select.cuh) and from rows that a
// warp holds in registers (short_select.cuh).
#pragma once

#include "kernels/cuda/group_sizes.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

// Rows that a warp reads next, in shared memory, for up to kHeads heads of the group.
struct RowList {
  static constexpr int kRows = 32;  // a row for each lane
  static constexpr int kHeads = 8;

  alignas(16) float weights[kRows][kHeads];  // of the heads, 0 behind the last row
  uint32_t rows[kRows];                      // of value_pages
  int32_t keys[kRows];
  float sizes[kRows];
};

class ChosenRows {
 public:
  // Whether all scores are finite; without, nothing else may be asked for.
  __device__ __forceinline__ bool finite() const { return finite_; }

 protected:
  // `scales` [heads] in shared memory.
  __device__ __forceinline__ ChosenRows(const Args& args, const GroupRow& row, HeadScale* scales, int lane)
      : args_(args),
        row_(row),
        scales_(scales),
        lane_(lane),
        part_(lane % kTileLanes),
        level_(args.p.method.estimator == Estimator::kLevel),
        rows_(row.wanted < row.keys ? static_cast<int32_t>(row.wanted) : row.keys),
        u_(draw_uniform(row.draws, kRowDraw)) {}

  // tau that would do if no row were kept, where the sizes of the group add up to `total`.
  __device__ __forceinline__ float first_tau(float total) const {
    if (level_) return INFINITY;
    if (rows_ == row_.keys) return 0;  // all are kept
    // The probabilities of every head add up to 1.
    return (norms_count(args_) ? total : static_cast<float>(row_.heads)) / static_cast<float>(rows_);
  }

  // Rows for a mass of 1, of `level`.
  __device__ __forceinline__ double rows_per_mass() const {
    return static_cast<double>(row_.wanted) / row_.heads;
  }

  // Sets where targets fall in a long row, from what the group holds besides its kept rows and how many those
  // are.
  __device__ __forceinline__ void set_targets(double rest, int32_t kept) {
    if (level_) {
      set_step(1 / rows_per_mass());
      drawn_ = level_draws(rest * rows_per_mass(), u_);
    } else {
      drawn_ = rest > 0 ? rows_ - kept : 0;
      set_step(rest / max(drawn_, 1));
    }
  }
  __device__ __forceinline__ void set_step(double step) {
    steps_of_mass_ = 1 / step;
    step_ = static_cast<float>(step);
    steps_ = static_cast<float>(steps_of_mass_);
  }
  // Targets of at most a mass; those of level_target are (s + 1 - u) steps.
  __device__ __forceinline__ int32_t targets_up_to(double mass) const {
    return min(drawn_, static_cast<int32_t>(mass * steps_of_mass_ + static_cast<double>(u_)));
  }

  __device__ __forceinline__ GroupSizes group_sizes() const { return {args_, row_, scales_, lane_}; }
  __device__ __forceinline__ bool keeps(float size) const { return keeps_row(size, tau_); }

  // Which of this lane's keys are read, a bit each: kept ones, and those in whose size a target falls.
  // kLanes lanes have eight keys each, in order; `start` is where the first begins, in steps behind the last
  // target below it, and `targets` fall into their keys. A target as near to the end of a lane's keys as sums
  // are rounded may be lost.
  template <int kLanes>
  __device__ __forceinline__ uint32_t rows_read(const float (&sizes)[8], float start, int32_t targets) const {
    const int place = lane_ % kLanes;
    float own = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) own += keeps(sizes[k]) ? 0.0f : sizes[k];
    float inclusive = own;
#pragma unroll
    for (int d = 1; d < kLanes; d *= 2) {
      const float before = __shfl_up_sync(kFullWarp, inclusive, d, kLanes);
      if (place >= d) inclusive += before;
    }
    float sum = __shfl_up_sync(kFullWarp, inclusive, 1, kLanes);
    if (place == 0) sum = 0;
    const auto reached = [&](float mass) {
      return min(targets, static_cast<int32_t>(fmaf(mass, steps_, start)));
    };
    int32_t passed = reached(sum);
    uint32_t read = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (keeps(sizes[k])) {
        read |= 1u << k;
        continue;
      }
      sum = k == 7 ? inclusive : fminf(sum + sizes[k], inclusive);
      const int32_t next = reached(sum);
      if (next > passed && sizes[k] > 0) read |= 1u << k;
      passed = next;
    }
    return read;
  }

  // Adds the rows that the warp's lanes read to a list, of which `held` are there, and those of a list that
  // is full to `gather` (GatherHeads), with the weights of `heads` heads from first_head on, at most
  // RowList::kHeads. A lane has the eight keys from 8 part_ on of a tile, whose value rows follow value_row,
  // their sizes, and in `read` a bit for each that is read. Returns how many rows there are. finish_list
  // comes last.
  template <class Gather>
  __device__ __forceinline__ int32_t append_rows(RowList& list, int32_t& held, int32_t tile,
                                                 uint32_t value_row, const float (&sizes)[8], uint32_t read,
                                                 int32_t first_head, int32_t heads, Gather& gather) const {
    int32_t inclusive = __popc(read);
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int32_t before = __shfl_up_sync(kFullWarp, inclusive, d);
      if (lane_ >= d) inclusive += before;
    }
    const int32_t count = __shfl_sync(kFullWarp, inclusive, 31);
    int32_t first = held + inclusive - __popc(read);  // in the list
    int32_t end = held + count;
#pragma unroll 1
    for (;;) {
      int32_t place = first;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if ((read >> k & 1) == 0) continue;
        if (place >= held && place < RowList::kRows) {
          list.rows[place] = value_row + k;
          list.keys[place] = tile * kScoreTile + 8 * part_ + k;
          list.sizes[place] = sizes[k];
        }
        ++place;
      }
      held = min(end, RowList::kRows);
      if (end < RowList::kRows) return count;
      finish_list(list, held, first_head, heads, gather);
      first -= RowList::kRows;
      end -= RowList::kRows;
    }
  }
  template <class Gather>
  __device__ __forceinline__ void finish_list(RowList& list, int32_t& held, int32_t first_head, int32_t heads,
                                              Gather& gather) const {
    if (held == 0) return;
    __syncwarp();
    gather.start(list, held);
    weigh(list, held, first_head, heads);
    __syncwarp();
    gather.correct(list, held);
    gather.add(list, held);
    __syncwarp();
    held = 0;
  }
  // Where the value rows of this lane's keys of a tile begin; eight keys lie in one page.
  __device__ __forceinline__ uint32_t first_value_row(int32_t tile) const {
    const int32_t first = tile * kScoreTile + 8 * part_;
    return first < row_.keys ? value_row_of(args_, row_, first) : 0;
  }

  const Args& args_;
  const GroupRow& row_;
  HeadScale* const scales_;
  const int lane_;
  const int part_;  // which of a tile's lanes this is
  const bool level_;
  const int32_t rows_;  // to read, at most
  const float u_;
  bool finite_ = false;
  float tau_ = 0;
  int32_t drawn_ = 0;         // targets up to the end of the row
  float step_ = 0;            // of the targets, in mass that is not kept
  float steps_ = 0;           // 1 / step_
  double steps_of_mass_ = 0;  // steps_ once more, for long rows

 private:
  // Finds the weights of the list's rows: a lane a row.
  __device__ __forceinline__ void weigh(RowList& list, int32_t count, int32_t first_head,
                                        int32_t heads) const {
    const bool used = lane_ < count;
    const int32_t key = used ? list.keys[lane_] : 0;
    // 1 / the probability that the row is read.
    const float size = used ? list.sizes[lane_] : 1.0f;
    const float factor = !used ? 0.0f : keeps(size) ? 1.0f : fmaxf(1.0f, step_ / size);
    const int32_t tile = key / kScoreTile;
    const int position = stage_position(key % kScoreTile);
#pragma unroll 1
    for (int32_t h = 0; h < heads; h += 4) {
      float weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t head = min(first_head + h + i, row_.heads - 1);
        const float w = __half2float(reinterpret_cast<const __half*>(row_.weights_of(head, tile))[position]);
        weights[i] = w * group_sizes().scale_of(head, row_.stats_of(head, tile)) * factor;
      }
      *reinterpret_cast<float4*>(&list.weights[lane_][h]) = {weights[0], weights[1], weights[2], weights[3]};
    }
  }
};

}  // namespace allot::kernels::cuda
