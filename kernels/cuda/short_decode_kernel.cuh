// Decodes short rows with small budgets in one kernel, where a launch has many of them: a warp reads the keys
// of one sequence and KV head, keeps the weights and the statistics of their score tiles in shared memory,
// and draws the samples and adds the value rows itself, while the copies of its next keys are under way.
// Weights never go through memory, and there is no second kernel that has to wait for them.
//
// Products, score tiles and selection are those of the two kernels, and so are the bits of every row.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/heads_gather.cuh"
#include "kernels/cuda/item_numbers.cuh"
#include "kernels/cuda/length_order.cuh"
#include "kernels/cuda/products.cuh"
#include "kernels/cuda/row_group.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/short_decode.h"
#include "kernels/cuda/tile_weights.cuh"
#include "kernels/cuda/value_kernel.cuh"
#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/warp_ring.cuh"
#include "kernels/methods/targets/heads_together.cuh"

namespace allot::kernels::cuda {

// Shared memory of a warp: its ring and, behind the rings of all warps, the weights and statistics of a row
// in every head of a group, the entries of a head and what its selection needs, and the barriers of the ring.
// `tiles` are the score tiles of the longest row. What is under way follows from the number of warps, so none
// of it is larger than it must be.
template <class T, int kHeadDim, class Selection>
struct ShortDecodeShape {
  using Products = KeyProducts<T, kHeadDim, 1>;
  // Two stages at least.
  static constexpr int kRingBytes = 8 * 1024;
  static constexpr int kStages = std::bit_floor(unsigned{kRingBytes} / Products::kStageBytes);
  using Ring = WarpRing<Products::kStageBytes, (kStages < 2 ? 2 : kStages)>;

  // Statistics of a head, so that they begin at a multiple of 16 bytes.
  __host__ __device__ static constexpr int32_t stat_tiles(int32_t tiles) { return (tiles + 1) / 2 * 2; }
  __host__ __device__ static constexpr int64_t weight_bytes(int32_t tiles, int32_t group) {
    return int64_t{tiles} * group * kScoreTile * 2;
  }
  __host__ __device__ static constexpr int64_t stat_bytes(int32_t tiles, int32_t group) {
    return int64_t{stat_tiles(tiles)} * group * int64_t{sizeof(TileStats)};
  }
  static constexpr int64_t kEntryBytes = kWarpRowBudget * int64_t{sizeof(Entry)};
  // Where heads draw together, their value rows alone lie there: all weights are the same.
  static constexpr int32_t kDrawnRows = kEntryBytes / sizeof(uint32_t);
  __host__ __device__ static constexpr int64_t selection_bytes(int32_t tiles) {
    const int64_t of_head = Selection::shared_bytes(tiles);
    const int64_t of_heads = TargetsOfHeads::shared_bytes(tiles);
    return ((of_head > of_heads ? of_head : of_heads) + 15) / 16 * 16;
  }
  // Behind its ring.
  __host__ __device__ static constexpr int64_t row_bytes(int32_t tiles, int32_t group) {
    return weight_bytes(tiles, group) + stat_bytes(tiles, group) + kEntryBytes + selection_bytes(tiles) +
           Ring::kBarrierBytes;
  }
};

// A sequence and KV head, the unit of work of a warp.
struct ShortRow {
  bool exists = false;
  bool bad_page = false;  // lane's own: among those that it looked up
  FaultCode fault = kFaultNone;
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t budget = 0;
  int32_t keys = 0;
  int32_t tiles = 0;  // to be scored: none where nothing is drawn
};

template <class T, int kHeadDim, class Selection>
class ShortDecoder {
  using Shape = ShortDecodeShape<T, kHeadDim, Selection>;
  using Products = typename Shape::Products;
  using Ring = typename Shape::Ring;
  static constexpr bool kHeadsTogether = std::is_same_v<Selection, TargetSelection<1>>;

 public:
  // Of a block. Memory is idle while a warp draws and no other one reads, longer where heads draw in turn.
  static constexpr int kFewestWarps = kHeadsTogether ? 8 : 10;

  // `shared` is the warp's memory behind the rings, but for the ring's barriers.
  __device__ __forceinline__ ShortDecoder(const Args& args, Ring& ring, char* shared,
                                          RowGroup<1>::Scratch& scratch, const int32_t* order)
      : args_(args),
        order_(order),
        ring_(ring),
        group_(scratch),
        most_tiles_(score_tiles(args.max_length)),
        weights_(reinterpret_cast<uint16_t*>(shared)),
        stats_(reinterpret_cast<TileStats*>(shared + Shape::weight_bytes(most_tiles_, args.group))),
        entries_(reinterpret_cast<Entry*>(reinterpret_cast<char*>(stats_) +
                                          Shape::stat_bytes(most_tiles_, args.group))),
        selection_shared_(reinterpret_cast<char*>(entries_) + Shape::kEntryBytes),
        lane_(group_.lane()),
        rows_(static_cast<int32_t>(args.p.batch) * args.num_kv_heads.value()),
        products_(lane_) {}

  // The next row is looked up while the one before it is worked on, and its first keys are copied while the
  // samples of that one are drawn.
  __device__ __forceinline__ void run(int32_t worker, int32_t workers) {
    ItemNumbers numbers(args_.next_piece, rows_, worker, workers);
    ShortRow row = load_row(numbers.number());
    numbers.take_own();
    row.bad_page = look_up(piece(row, 0));
    fill();
#pragma unroll 1
    while (row.exists) {
      ShortRow next = load_row(numbers.number());
      numbers.take_next();
      if (row.tiles > 0) load_queries(row);
#pragma unroll 1
      for (int32_t first = 0;; first += kMaxPieceTiles) {
        const bool ends = first + kMaxPieceTiles >= row.tiles;
        const bool bad_page = look_up(ends ? piece(next, 0) : piece(row, first + kMaxPieceTiles));
        row.bad_page |= !ends && bad_page;
        next.bad_page |= ends && bad_page;
        score(row, first, min(row.tiles, first + kMaxPieceTiles));
        if (ends) break;
      }
      // The ring may have run empty over rows without keys.
      fill();
      sample(row);
      row = next;
    }
  }

 private:
  static constexpr int kTileStages = kScoreTile / kStageKeys;

  __device__ __forceinline__ ShortRow load_row(int32_t item) {
    ShortRow row;
    if (item >= rows_) return row;
    row.exists = true;
    const int32_t place = args_.num_kv_heads.quotient(item);
    row.sequence = order_ == nullptr ? place : order_[place];
    row.kv_head = item - place * args_.num_kv_heads.value();
    const PassSequence sequence = pass_sequence(args_, row.sequence, &row.fault);
    if (row.kv_head == 0 && lane_ == 0) report_fault(args_, row.fault, row.sequence, sequence);
    row.budget = budget_of(args_, row.sequence);
    row.keys = sequence.length;
    if (sequence.count > 0 && row.budget != kDenseBudget) row.tiles = score_tiles(row.keys);
    return row;
  }

  // The keys of up to kMaxPieceTiles score tiles of a row.
  struct Piece {
    int32_t sequence;
    int32_t kv_head;
    int32_t first_key;
    int32_t stages;
  };
  // By value: two rows one of which is referred to by a condition would lie in local memory, every access to
  // which is one to L2 here, since shared memory leaves L1 no room.
  static __device__ __forceinline__ Piece piece(const ShortRow& row, int32_t first_tile) {
    const int32_t first_key = first_tile * kScoreTile;
    const int32_t last_key = min(row.keys, first_key + kMaxPieceTiles * kScoreTile);
    return {row.sequence, row.kv_head, first_key,
            first_tile < row.tiles ? (last_key - first_key + kStageKeys - 1) / kStageKeys : 0};
  }

  // The piece's stages join those the ring will be filled with. Whether a page of the lane's is outside the
  // pool.
  __device__ __forceinline__ bool look_up(const Piece& piece) {
    bool bad_page = false;
    const int32_t ahead = (lane_ - known_stages_) & 31;
    if (ahead < piece.stages) {
      row_ = key_row(args_, piece.sequence, piece.kv_head, piece.first_key + ahead * kStageKeys, &bad_page);
    }
    known_stages_ += piece.stages;
    return bad_page;
  }

  __device__ __forceinline__ void fill() {
    ring_.fill(known_stages_, Products::stage(args_, row_));
  }

  __device__ __forceinline__ uint16_t* weights_of(int32_t of_group) const {
    return weights_ + of_group * most_tiles_ * kScoreTile;
  }
  __device__ __forceinline__ TileStats* stats_of(int32_t of_group) const {
    return stats_ + of_group * Shape::stat_tiles(most_tiles_);
  }
  __device__ __forceinline__ int32_t head(const ShortRow& row, int32_t of_group) const {
    return row.kv_head * args_.group + of_group;
  }

  __device__ __forceinline__ void load_queries(const ShortRow& row) {
    products_.load(args_, [&](int column) -> QueryPlace {
      return {column < args_.group, row.sequence, head(row, column)};
    });
  }

  // Leaves the weights and statistics of score tiles [first, last).
  __device__ __forceinline__ void score(const ShortRow& row, int32_t first, int32_t last) {
#pragma unroll 1
    for (int32_t tile = first; tile < last; ++tile) {
      const int32_t keys = row.keys - tile * kScoreTile;
      typename Products::Scores scores;
#pragma unroll
      for (int i = 0; i < kTileStages; ++i) {
        if (i * kStageKeys < keys) {
          products_.multiply(ring_.wait(), 0, i, scores);
          ring_.advance();
          fill();
        } else {
          Products::clear(i, scores);
        }
      }
      products_.finish(
          scores, args_.p.scale * kLog2E, [&](int) { return keys; },
          [&](int column, const uint4(&vectors)[Products::kVectors], const TileStats& stats) {
            if (column >= args_.group) return;
            uint16_t* const weights = weights_of(column) + tile * kScoreTile;
#pragma unroll
            for (int v = 0; v < Products::kVectors; ++v)
              *reinterpret_cast<uint4*>(weights + (products_.position(v) ^ 8 * swap_of_tile(tile, column))) =
                  vectors[v];
            if (products_.leads()) stats_of(column)[tile] = stats;
          });
    }
  }

  // Draws the samples of the row in every head, and writes the output.
  __device__ __forceinline__ void sample(const ShortRow& row) {
    if (row.budget == kDenseBudget && row.fault == kFaultNone) return;  // another kernel serves it
    // The keys of a page outside the pool are unknown.
    const bool bad_page = __any_sync(kFullWarp, row.bad_page);
    const bool draws = row.budget > 0 && row.fault == kFaultNone && !bad_page;
    const int32_t lanes = kHeadsTogether && draws ? TargetsOfHeads::lanes_of_head(row.tiles, row.budget) : 32;
    __syncwarp();
    if (lanes < 32) {
      sample_together(row, lanes);
    } else {
#pragma unroll 1
      for (int32_t head = 0; head < args_.group; ++head) {
        if (!draws || !sample_head(row, head))
          fill_output(row, head, row.budget == 0 && row.fault == kFaultNone ? 0.0f : NAN);
        __syncwarp();
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ T* output(const ShortRow& row, int32_t of_group) const {
    return static_cast<T*>(args_.p.out) +
           (int64_t{row.sequence} * args_.p.num_q_heads + head(row, of_group)) * kHeadDim;
  }
  __device__ __forceinline__ void fill_output(const ShortRow& row, int32_t of_group, float x) const {
    for (int i = lane_; i < kHeadDim; i += 32) output(row, of_group)[i] = static_cast<T>(x);
  }

  __device__ __forceinline__ ValueRow value_row(const ShortRow& of_heads, int32_t of_group) const {
    ValueRow row;
    row.sequence = of_heads.sequence;
    row.head = head(of_heads, of_group);
    row.kv_head = of_heads.kv_head;
    row.keys = of_heads.keys;
    row.tiles = of_heads.tiles;
    row.budget = of_heads.budget;
    row.stats = stats_of(of_group);
    row.weights = weights_of(of_group);
    row.swapping_head = of_group;
    const SequenceDraws& draws = args_.p.draws[row.sequence];
    row.draws = {draws.key, draws.question, args_.p.layer,
                 static_cast<uint32_t>(args_.p.first_head + row.head), static_cast<uint32_t>(row.keys - 1)};
    return row;
  }

  // In one head; false, with nothing written, where the row's weights are not finite.
  __device__ __forceinline__ bool sample_head(const ShortRow& of_heads, int32_t of_group) {
    const ValueRow row = value_row(of_heads, of_group);
    using Known = typename Selection::Known;
    const Known known(args_, row, Known::place(row.budget, lane_));
    Selection selection(args_, row, group_, selection_shared_, known);
    if (!isfinite(selection.total())) return false;
    selection.fill(Batch{entries_, 0, row.budget});
    __syncwarp();
    add_values(row, output(of_heads, of_group));
    return true;
  }

  // In all heads, as many at a time as there are lanes for. The value rows of as many as there is room for
  // are under way before the first is waited for.
  __device__ __forceinline__ void sample_together(const ShortRow& of_heads, int32_t lanes) {
    const int32_t at_once = Shape::kDrawnRows / lanes;
#pragma unroll 1
    for (int32_t begin = 0; begin < args_.group; begin += at_once) {
      const int32_t end = min(args_.group, begin + at_once);
#pragma unroll 1
      for (int32_t first = begin; first < end; first += 32 / lanes) {
        const int32_t own = first + lane_ / lanes;
        const ValueRow row = value_row(of_heads, min(own, args_.group - 1));
        const TargetsOfHeads targets(args_, row, own < end, lanes, lane_,
                                     reinterpret_cast<double*>(selection_shared_));
        if (own < end && lane_ % lanes < row.budget) {
          drawn_rows()[(first - begin) * lanes + lane_] = targets.value_row();
          if (targets.value_row() != kNoRow)
            ask_for_row<4>(args_.p.value_pages, targets.value_row(), kHeadDim * int32_t{sizeof(T)});
        }
        __syncwarp();
      }
      const int32_t heads = end - begin;
      add_heads<T, kHeadDim>(args_.p.value_pages, {drawn_rows(), lanes, heads, of_heads.budget}, lane_,
                             output(of_heads, begin));
      if (args_.row_table != nullptr) {
        const ValueRow row = value_row(of_heads, begin);
#pragma unroll 1
        for (int32_t h = 0; h < heads; ++h)
          count(row, [&](int32_t s) { return drawn_rows()[h * lanes + s]; });
      }
      __syncwarp();
    }
  }

  // `row` is that of any head of the group, value_row(s) that of sample `s`.
  template <class ValueRowOf>
  __device__ __forceinline__ void count(const ValueRow& row, ValueRowOf value_row) {
    count_new_rows(args_, row, rows_of_group(args_, row, row.sequence), row.budget, value_row, group_);
  }

  __device__ __forceinline__ void add_values(const ValueRow& row, T* out) {
    Gather<T, kHeadDim, 1> gather(0, lane_);
    gather.add(args_.p.value_pages, entries_, row.budget);
    if (args_.row_table != nullptr) count(row, [&](int32_t e) { return read_row(entries_[e]); });
    const auto& sum = gather.reduce();
    if (gather.writes(lane_)) write_eight(out + gather.element(), [&](int i) { return sum[i]; });
  }

  __device__ __forceinline__ uint32_t* drawn_rows() const {
    return reinterpret_cast<uint32_t*>(entries_);
  }

  const Args& args_;
  const int32_t* const order_;  // LengthOrder
  Ring& ring_;
  RowGroup<1> group_;
  const int32_t most_tiles_;      // of a row
  uint16_t* const weights_;       // [group, most_tiles, kScoreTile], in stage order, vectors swapped
  TileStats* const stats_;        // [group, stat_tiles(most_tiles)]
  Entry* const entries_;          // of a head, or drawn_rows()
  char* const selection_shared_;  // of a head
  const int lane_;
  const int32_t rows_;
  Products products_;
  uint32_t row_ = 0;  // of the next stage whose number is the lane's modulo 32, among all cached keys
  int32_t known_stages_ = 0;
};

// Grid: one block a multiprocessor, each warp on its own.
template <class Selection, class T, int kHeadDim>
__global__ void __launch_bounds__(32 * kMostShortWarps, 1)
    short_decode_kernel(const __grid_constant__ Args args) {
  using Shape = ShortDecodeShape<T, kHeadDim, Selection>;
  using Ring = typename Shape::Ring;
  ALLOT_DYNAMIC_SHARED(128, shared);
  __shared__ RowGroup<1>::Scratch scratch;  // a warp needs none
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row_bytes = Shape::row_bytes(score_tiles(args.max_length), args.group);
  char* const row = shared + warps * Ring::kBytes + warp * row_bytes;
  // Nothing else is in L2 that many keys should spare. That lines which somebody wrote before go to memory at
  // once, and not one by one while the launch reads, is better where L2 is filled many times.
  constexpr int64_t kBesideL2 = int64_t{256} << 20;
  const int64_t key_bytes = args.p.batch * args.num_kv_heads.value() * args.max_length * (kHeadDim * 2);
  Ring ring(shared + warp * Ring::kBytes, reinterpret_cast<uint64_t*>(row + row_bytes - Ring::kBarrierBytes),
            lane, key_bytes <= kBesideL2);
  wait_for_predecessor();
  let_dependents_start();
  static_assert(LengthOrder::shared_numbers(32) * sizeof(int32_t) <= Ring::kBytes,
                "a warp's share of what the order needs");
  // Written where two kernels would have weights, by means of what the rings use later.
  const int32_t* const order =
      LengthOrder::write(args, reinterpret_cast<int32_t*>(shared), reinterpret_cast<int32_t*>(args.weights));
  const int32_t workers = static_cast<int32_t>(gridDim.x) * warps;
  // Neighbouring rows go to different multiprocessors, so that a small batch occupies all of them.
  ShortDecoder<T, kHeadDim, Selection>(args, ring, row, scratch, order)
      .run(warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x), workers);
}

}  // namespace allot::kernels::cuda
