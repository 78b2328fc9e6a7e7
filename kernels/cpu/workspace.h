// Scratch memory of one thread, kept between launches so that a launch allocates nothing once it is warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace allot::kernels::cpu {

// Uninitialised memory that starts at a cache line and only grows.
template <class T>
class Buffer {
 public:
  // Makes room for `count` elements; the old content may be lost.
  T* reserve(int64_t count) {
    if (count > capacity_) {
      data_.reset();  // frees the old memory before the new is allocated
      data_.reset(static_cast<T*>(::operator new(static_cast<size_t>(count) * sizeof(T), kAlignment)));
      capacity_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t capacity_ = 0;
};

// One sampled key of a row and the factor of its value vector, before the row's common scale.
struct Pick {
  int32_t key;
  float weight;
};

// The picks of a row: the estimate is scale * sum of weight * value.
struct Picks {
  int32_t count = 0;
  float scale = 0;
  bool all = false;  // take every key with its weight; `count` is not used
};

struct Workspace {
  Buffer<int64_t> offsets;   // of each key's vector in the pages
  Buffer<float> query;       // queries in the order the score loops need
  Buffer<float> keys;        // keys as float32
  Buffer<float> values;      // values as float32
  Buffer<float> weights;     // scores, then exp(score - max), then estimator weights
  Buffer<float> row;         // one row of weights
  Buffer<float> rest;        // the row without the keys that `threshold` keeps
  Buffer<float> shared;      // rows of weights of heads that choose together
  Buffer<float> sizes;       // of rows that heads choose together
  Buffer<float> norms;       // of values
  Buffer<float> scales;      // 1 / the sum of the weights of each of them
  Buffer<uint8_t> marks;     // of value rows that were read
  Buffer<float> block_ends;  // CDF of a row at the end of each block of lanes
  Buffer<float> super_ends;  // CDF of a row at the end of each block of blocks
  Buffer<Pick> picks;        // picks of the row that was selected last
  Buffer<Pick> pick_lists;   // picks of several rows
  Buffer<Picks> row_picks;
  Buffer<uint16_t> rows_of_key;  // bits of sixteen rows
  Buffer<uint64_t> keys_of_row;  // bits of the keys of sixteen rows
  Buffer<int64_t> places;        // of the value vectors of a list
  Buffer<float> factors;         // by which heads multiply them
  Buffer<int32_t> order;         // keys in the order of `topk`, tile budgets of `prop`
  Buffer<double> masses;         // of tiles
  Buffer<float> accumulator;
  // Operands of matrix tiles: bfloat16, or pairs of them.
  Buffer<uint16_t> tile_keys;
  Buffer<uint32_t> tile_queries;
  Buffer<uint32_t> tile_values;
  Buffer<uint32_t> tile_weights;
};

}  // namespace allot::kernels::cpu
