// Exact attention of a decode step in one kernel that reads every visible key and value once, beside the two
// kernels that sampling needs: a warp multiplies 16 keys at a time with the queries of a head group, turns
// the products into weights relative to the largest so far, and multiplies those with the 16 values, all on
// the tensor cores.
//
// A row of long sequences is the work of several blocks (a part each), of which the last to finish adds the
// parts. Parts follow from the row's length alone, so its result has the same bits whatever shares the
// launch.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/exact_keys.cuh"
#include "kernels/cuda/exact_piece.cuh"
#include "kernels/cuda/exact_sums.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/tile_weights.cuh"

namespace allot::kernels::cuda {

// A warp's next keys: up to kSegmentPairs times 16 keys and their values, of one part of one sequence and
// KV head. The stages of a part are dealt to the warps of a block one by one.
inline constexpr int kSegmentPairs = 8;

// A warp that multiplies. Keys is ExactKeys or ExactSplitKeys.
template <class Keys>
class ExactDecoder {
  using T = typename Keys::Element;
  static constexpr int kHeadDim = Keys::kHeadDim;
  static constexpr int kColumnTiles = Keys::kColumnTiles;

 public:
  using Shape = ExactDecodeShape<Keys>;
  using Ring = typename Shape::Ring;

  __device__ __forceinline__ ExactDecoder(const Args& args, const ExactShared<Shape>& shared, Ring& ring)
      : args_(args),
        shared_(shared),
        ring_(ring),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        keys_(args, lane_) {}

  // Until the block has no more pieces. A piece is looked up while the one before it is worked on.
  __device__ __forceinline__ void run() {
    int32_t unit = 0;
    ExactPiece piece = shared_.first_piece(args_, shared_.items[0]);
    load_segment(piece, 0);
    if (args_.settled_keys) {
      if (piece.exists) ring_.fill(settled_stages(piece), source_);
      wait_for_predecessor();
    }
    fill();
#pragma unroll 1
    for (int32_t number = 0; piece.exists; ++number) {
      // Once the sums of the piece three before this one have been taken, the next unit's item is there.
      const ExactPiece next = shared_.next_piece(args_, piece, unit);
      begin(piece);
      const int32_t pairs = own_pairs(piece);
#pragma unroll 1
      for (int32_t first = 0;; first += kSegmentPairs) {
        const bool ends = first + kSegmentPairs >= pairs;
        if (ends) {
          load_segment(next, 0);
        } else {
          load_segment(piece, first + kSegmentPairs);
        }
        multiply(piece, first, min(pairs, first + kSegmentPairs));
        if (ends) break;
      }
      // The ring may have run empty over short pieces.
      fill();
      if (number >= 2) wait_at(shared_address(&shared_.added[number % 2]), number / 2 - 1);
      leave_sums(number % 2);
      arrive_at(shared_address(&shared_.left[number % 2]));
      piece = next;
    }
  }

 private:
  static constexpr int kGrain = kHeadDim % 64 == 0 ? 8 : 4;  // elements of a value that a lane loads at once
  static constexpr int kGrains = kHeadDim / (8 * kGrain);    // of a lane
  static constexpr int kBlocks = kGrain / 2;                 // products of 16 elements that a grain feeds
  using Grain = std::conditional_t<kGrain == 8, uint4, uint2>;

  // Times 16 keys of a piece that are the warp's: those whose number is the warp's modulo the warps.
  __device__ __forceinline__ int32_t own_pairs(const ExactPiece& piece) const {
    return max(0, piece.last_pair - piece.first_pair - warp_ + shared_.warps - 1) / shared_.warps;
  }

  // Those known of a first piece that do not depend on the kernels before: all but the pair with the
  // sequence's last key.
  __device__ __forceinline__ int32_t settled_stages(const ExactPiece& piece) const {
    const int32_t last = piece.first_pair + warp_ + (known_stages_ / 2 - 1) * shared_.warps;
    return known_stages_ > 0 && (last + 1) * kStageKeys >= piece.keys ? known_stages_ - 2 : known_stages_;
  }

  // The stages of the warp's pairs from number `first` on join those the ring will be filled with.
  __device__ __forceinline__ void load_segment(const ExactPiece& piece, int32_t first) {
    if (!piece.exists) return;
    const int32_t pairs = min(kSegmentPairs, own_pairs(piece) - first);
    if (pairs <= 0) return;
    const int32_t ahead = (lane_ - known_stages_) & 31;
    if (ahead < 2 * pairs) {
      const int32_t pair = piece.first_pair + warp_ + (first + ahead / 2) * shared_.warps;
      bool bad_page = false;
      const uint32_t row = key_row(args_, piece.sequence, piece.kv_head, pair * kStageKeys, &bad_page);
      source_ = ahead % 2 == 0 ? Keys::keys(args_, row) : Keys::values(args_, row);
      if (bad_page) bad_stage_ = known_stages_ + ahead;
    }
    known_stages_ += 2 * pairs;
  }

  __device__ __forceinline__ void fill() {
    ring_.fill(known_stages_, source_);
  }

  __device__ __forceinline__ void begin(const ExactPiece& piece) {
    if (piece.part == piece.unit_begin) {
      keys_.load(args_, [&](int column) -> QueryPlace {
        return {column < args_.group, int64_t{args_.first_query} + piece.slot,
                piece.kv_head * args_.group + column};
      });
    }
#pragma unroll
    for (int r = 0; r < kColumnTiles; ++r) {
      largest_[r] = -INFINITY;
      sum_[r] = 0;
#pragma unroll
      for (int i = 0; i < kGrains; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out_[r][i][j][e] = 0;
        }
      }
    }
  }

  // Keys and values of the warp's pairs [first, last) of a piece.
  __device__ __forceinline__ void multiply(const ExactPiece& piece, int32_t first, int32_t last) {
#pragma unroll 1
    for (int32_t i = first; i < last; ++i) {
      const int32_t key = (piece.first_pair + warp_ + i * shared_.warps) * kStageKeys;
      TileScores<kColumnTiles> scores;
      const bool bad_page = __any_sync(kFullWarp, bad_stage_ == ring_.read());
      const uint32_t keys = ring_.wait();
      keys_.multiply(keys, scores);
      ring_.advance();
      fill();
      const int32_t visible = piece.keys - key;
      if (visible < kStageKeys) hide(scores, visible);
      uint32_t high[kColumnTiles][2];
      uint32_t low[kColumnTiles][2];
#pragma unroll
      for (int r = 0; r < kColumnTiles; ++r) weigh(scores, r, bad_page, high[r], low[r]);
      const uint32_t values = ring_.wait();
      add_values(values, visible, high, low);
      ring_.advance();
      fill();
    }
  }

  __device__ __forceinline__ void hide(TileScores<kColumnTiles>& scores, int32_t visible) const {
#pragma unroll
    for (int r = 0; r < kColumnTiles; ++r) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * n + lane_ % 4 * 2 + e >= visible) scores[r][n][e] = -INFINITY;
        }
      }
    }
  }

  // Weights of 16 keys in a column, relative to its largest score so far, in two numbers of 16 bits each
  // whose sum has 16 bits of precision or more: a rounding of the weights would be seen in the result.
  __device__ __forceinline__ void weigh(const TileScores<kColumnTiles>& scores, int r, bool bad_page,
                                        uint32_t (&high)[2], uint32_t (&low)[2]) {
    const float scale = keys_.scale(args_, r);
    float largest = fmaxf(fmaxf(scores[r][0][0], scores[r][0][1]), fmaxf(scores[r][1][0], scores[r][1][1]));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2)) * scale;
    if (__any_sync(kFullWarp, largest > largest_[r])) {
      const float before = largest_[r];
      largest_[r] = fmaxf(before, largest);
      const float factor = before == -INFINITY ? 0.0f : fast_exp2(before - largest_[r]);
      sum_[r] *= factor;
      const float even = __shfl_sync(kFullWarp, factor, lane_ % 4 * 8);
      const float odd = __shfl_sync(kFullWarp, factor, lane_ % 4 * 8 + 4);
#pragma unroll
      for (int i = 0; i < kGrains; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) out_[r][i][j][e] *= e % 2 == 0 ? even : odd;
        }
      }
    }
    const float shift = largest_[r] == -INFINITY ? 0.0f : largest_[r];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float a = fast_exp2(fmaf(scores[r][n][0], scale, -shift));
      const float b = fast_exp2(fmaf(scores[r][n][1], scale, -shift));
      high[n] = pack<T>(a, b);
      const float2 rounded = unpack<T>(high[n]);
      low[n] = pack<T>(a - rounded.x, b - rounded.y);
      sum_[r] += a + b;
    }
    // The keys of a page outside the pool are unknown.
    if (bad_page) sum_[r] = NAN;
  }

  static __device__ __forceinline__ uint32_t word(const Grain& grain, int i) {
    if constexpr (kGrain == 8) {
      return i == 0 ? grain.x : i == 1 ? grain.y : i == 2 ? grain.z : grain.w;
    } else {
      return i == 0 ? grain.x : grain.y;
    }
  }

  static __device__ __forceinline__ Grain load_grain(uint32_t address) {
    if constexpr (kGrain == 8) {
      return load_shared_vector(address);
    } else {
      return load_shared_pair(address);
    }
  }

  // Adds 16 weighted values. Elements of the head dimension are the rows of the product, query heads its
  // columns. A lane needs an element of two neighbouring keys in one word, and the values have it in two.
  __device__ __forceinline__ void add_values(uint32_t values, int32_t visible,
                                             const uint32_t (&high)[kColumnTiles][2],
                                             const uint32_t (&low)[kColumnTiles][2]) {
    const int t = lane_ % 4;
#pragma unroll
    for (int i = 0; i < kGrains; ++i) {
      Grain grains[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int key = 2 * t + k % 2 + k / 2 * 8;
        grains[k] = load_grain(values + key * (kHeadDim * 2) + (8 * i + lane_ / 4) * (kGrain * 2));
        // What lies behind the last key may be anything, and nothing times NaN is NaN.
        if (visible < kStageKeys && key >= visible) grains[k] = Grain{};
      }
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const uint4 a{__byte_perm(word(grains[0], j), word(grains[1], j), 0x5410),
                      __byte_perm(word(grains[0], j), word(grains[1], j), 0x7632),
                      __byte_perm(word(grains[2], j), word(grains[3], j), 0x5410),
                      __byte_perm(word(grains[2], j), word(grains[3], j), 0x7632)};
#pragma unroll
        for (int r = 0; r < kColumnTiles; ++r) {
          multiply_accumulate<T>(out_[r][i][j], a, high[r][0], high[r][1]);
          multiply_accumulate<T>(out_[r][i][j], a, low[r][0], low[r][1]);
        }
      }
    }
  }

  __device__ __forceinline__ void leave_sums(int buffer) {
#pragma unroll
    for (int r = 0; r < kColumnTiles; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(kFullWarp, sum, 1);
      sum += __shfl_xor_sync(kFullWarp, sum, 2);
      if (lane_ % 4 == 0) shared_.stats_of(buffer, warp_)[8 * r + lane_ / 4] = {largest_[r], sum};
      float* const even = shared_.sums_of(buffer, warp_) + (8 * r + lane_ % 4 * 2) * Shape::kColumnFloats;
#pragma unroll
      for (int i = 0; i < kGrains; ++i) {
        const int element = (8 * i + lane_ / 4) * kGrain;
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) {
          const auto& a = out_[r][i][j];
          const auto& b = out_[r][i][j + 1];
          *reinterpret_cast<float4*>(even + element + 2 * j) = {a[0], a[2], b[0], b[2]};
          *reinterpret_cast<float4*>(even + Shape::kColumnFloats + element + 2 * j) = {a[1], a[3], b[1],
                                                                                       b[3]};
        }
      }
    }
  }

  const Args& args_;
  const ExactShared<Shape>& shared_;
  Ring& ring_;
  const int warp_;
  const int lane_;
  Keys keys_;
  float largest_[kColumnTiles];  // score of column lane / 4 so far, in units of log2
  float sum_[kColumnTiles];      // of its weights of the lane's keys
  float out_[kColumnTiles][kGrains][kBlocks][4];
  typename Keys::Source source_ = {};  // of the next stage whose number is the lane's modulo 32
  int32_t known_stages_ = 0;
  int32_t bad_stage_ = -1;  // the last one of the lane's whose page lies outside the pool
};

// Grid: one block a multiprocessor, of as many warps as multiply and kAddingWarps more.
template <class Keys>
__global__ void __launch_bounds__(32 * (ExactDecodeShape<Keys>::kWarps + kAddingWarps), 1)
    exact_decode_kernel(const __grid_constant__ Args args) {
  constexpr int kHeadDim = Keys::kHeadDim;
  using Shape = ExactDecodeShape<Keys>;
  using Ring = typename Shape::Ring;
  ALLOT_DYNAMIC_SHARED(128, shared);
  const int warps = static_cast<int>(blockDim.x) / 32 - kAddingWarps;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto batch = static_cast<int32_t>(args.p.batch);
  char* next = shared;
  const auto take = [&next](int64_t bytes) {
    char* const taken = next;
    next += bytes;
    return taken;
  };
  char* const rings = take(int64_t{warps} * Ring::kBytes);
  ExactShared<Shape> parts;
  parts.warps = warps;
  parts.sums = reinterpret_cast<float*>(take(int64_t{warps} * Shape::kSumBytes));
  parts.slices = reinterpret_cast<float4*>(take(32 * kAddingWarps * 16));
  char* const adding = take(Shape::kAddingBytes);
  parts.span_sums = reinterpret_cast<float*>(adding);
  parts.span_stats = reinterpret_cast<TileStats*>(adding + Shape::kColumns * kHeadDim * 4);
  parts.factors = reinterpret_cast<MergeFactors*>(adding);
  parts.span_factors = reinterpret_cast<float*>(parts.factors + Shape::kColumns * kMostExactParts);
  parts.stats = reinterpret_cast<TileStats*>(take(int64_t{warps} * Shape::kStatBytes));
  char* const barriers = take(int64_t{warps} * Ring::kBarrierBytes);
  parts.left = reinterpret_cast<uint64_t*>(take(16));
  parts.added = reinterpret_cast<uint64_t*>(take(16));
  parts.items = reinterpret_cast<int32_t*>(take(16));
  parts.verdict = reinterpret_cast<int32_t*>(take(16));
  auto* const scratch = reinterpret_cast<int32_t*>(take(4 * 32));
  auto* const unit_start = reinterpret_cast<int32_t*>(next);
  int32_t* const lengths = unit_start + batch + 1;
  parts.unit_start = unit_start;
  parts.lengths = lengths;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      init_barrier(shared_address(&parts.left[i]), 32 * warps);
      init_barrier(shared_address(&parts.added[i]), 32 * kAddingWarps);
    }
    for (int i = 0; i < kItemsAhead; ++i) parts.items[i] = static_cast<int32_t>(blockIdx.x + i * gridDim.x);
  }
  // The next kernel, a product, starts when this one has ended: beside it, it took longer in all.
  if (!args.settled_keys) wait_for_predecessor();
  block_prefix_sum(batch, unit_start, scratch, [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = pass_sequence(args, b, &fault);
    if (blockIdx.x == 0) report_fault(args, fault, b, s);
    // Where other kernels work, too, they fill the output of what is at fault.
    const bool is_fault = fault != kFaultNone && args.exact_alone && b >= args.first_query &&
                          b < args.first_query + args.pass_queries;
    lengths[b] = is_fault ? -1 : s.length;
    if (is_fault) return 1;
    if (s.count == 0 || !is_decoded_exactly(args, b, s.queries)) {
      lengths[b] = 0;
      return 0;
    }
    return exact_part_count(s.length, args.exact_most_parts);
  });
  const int32_t all_parts = unit_start[batch] * args.num_kv_heads.value();
  parts.takes_spans = all_parts >= args.exact_many_parts;
  if (parts.takes_spans) {
    __syncthreads();
    block_prefix_sum(batch, unit_start, scratch, [&](int32_t b) {
      return lengths[b] < 0 ? 1 : lengths[b] == 0 ? 0 : exact_span_count(lengths[b], args.exact_most_parts);
    });
  }
  if (warp < warps) {
    // Lines that somebody wrote before go to memory one by one while the launch reads if its own leave L2
    // first, and at its start if not. Reads that go on beside writes are slow, so that is better where L2
    // is filled many times; where it is not, what was there before is better left.
    Ring ring(rings + warp * Ring::kBytes, reinterpret_cast<uint64_t*>(barriers + warp * Ring::kBarrierBytes),
              lane, all_parts <= args.exact_parts_beside_l2);
    ExactDecoder<Keys>(args, parts, ring).run();
    return;
  }
  if (args.settled_keys) wait_for_predecessor();
  ExactAdder<typename Keys::Element, kHeadDim, Shape>(args, parts).run();
}

}  // namespace allot::kernels::cuda
