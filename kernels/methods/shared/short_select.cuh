// Chooses the value rows that the heads of a group read together where a warp holds the sizes of all of them
// in registers, eight keys a lane: in prompts and texts of up to 256 tokens that is every query. The steps
// are those of select.cuh, without statistics and a CDF in shared memory and without reading a weight twice.
// Not for `pooled`, whose tau comes from sizes to the same bit.
#pragma once

#include "kernels/methods/shared/chosen_rows.cuh"

namespace allot::kernels::cuda {

class ShortSelection : public ChosenRows {
 public:
  static_assert(kShortTiles == GroupSizes::kQuad);

  // `shared` has room for the scales of the heads.
  __device__ __forceinline__ ShortSelection(const Args& args, const GroupRow& row, int lane, char* shared)
      : ChosenRows(args, row, reinterpret_cast<HeadScale*>(shared), lane), tile_(lane / kTileLanes) {
    group_sizes().of_short_row(tile_, scales_, sizes_);
    float mass = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) mass += sizes_[k];
    const float total = sum(mass);
    finite_ = isfinite(total);
    if (!finite_) return;
    tau_ = first_tau(total);
    int32_t kept = 0;
    float rest = 0;
#pragma unroll 1
    for (int32_t before = 0;; before = kept) {
      const SplitOfEight own = split_of(sizes_, tau_);
      kept = sum(own.kept);
      rest = sum(own.rest);
      if (level_ || kept == before || kept >= rows_) break;
      const float next = fmaxf(rest, 0.0f) / static_cast<float>(rows_ - kept);
      if (!(next < tau_)) break;
      tau_ = next;
    }
    if (level_) {
      steps_ = static_cast<float>(rows_per_mass());
      step_ = 1 / steps_;
      drawn_ = level_draws(rest * steps_, u_);
    } else {
      drawn_ = rest > 0 ? rows_ - kept : 0;
      step_ = rest / static_cast<float>(max(drawn_, 1));
      steps_ = 1 / step_;
    }
    __syncwarp();
  }

  // As SharedSelection's.
  template <class Gather>
  __device__ __forceinline__ int32_t for_each_list(int32_t /*part*/, int32_t /*parts*/, int32_t first_head,
                                                   int32_t heads, RowList& list, Gather& gather) const {
    int32_t held = 0;
    const int32_t all = append_rows(list, held, tile_, first_value_row(tile_), sizes_,
                                    rows_read<32>(sizes_, u_, drawn_), first_head, heads, gather);
    finish_list(list, held, first_head, heads, gather);
    return all;
  }

 private:
  // Over the warp, the same in every lane.
  template <class T>
  __device__ __forceinline__ static T sum(T x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kFullWarp, x, d);
    return x;
  }

  const int32_t tile_;
  float sizes_[8];
};

}  // namespace allot::kernels::cuda
