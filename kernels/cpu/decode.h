// One query against the paged cache: lanes are keys. A KV head's keys are read once from memory for its whole
// head group; a sampling estimator then reads only the value vectors it picked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/item_data.h"
#include "kernels/cpu/read_rows.h"
#include "kernels/cpu/score_query.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/vec_math.h"

namespace allot::kernels::cpu {

// A vector of head_dim elements as ceil(head_dim / 16) float registers. bfloat16 elements are read 32 at a
// time and split into even and odd ones, which costs one instruction a register; query and key only need
// the same order.
template <class V>
ALLOT_INLINE typename V::F load_chunk(const float* p, int32_t head_dim, int32_t chunk) {
  const int32_t left = head_dim - chunk * kLanes;
  return left >= kLanes ? V::load(p + chunk * kLanes) : V::load_partial(p + chunk * kLanes, left);
}

// Dot products of 16 keys with one query: lane i is key i. `kChunks` is ceil(head_dim / 16) where it is known
// at compile time, 0 otherwise.
template <class V, int kChunks>
ALLOT_INLINE typename V::F dot_block(const float* const (&keys)[kLanes], const float* query,
                                     int32_t head_dim) {
  using F = typename V::F;
  const int32_t chunks = kChunks != 0 ? kChunks : (head_dim + kLanes - 1) / kLanes;
  F sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    F sum = V::zero();
    for (int32_t c = 0; c < chunks; ++c) {
      const F key = kChunks != 0 ? V::load(keys[i] + c * kLanes) : load_chunk<V>(keys[i], head_dim, c);
      sum = V::fma(key, V::load(query + c * kLanes), sum);
    }
    sums[i] = sum;
  }
  return V::reduce_add_each(sums);
}

template <class V, int kChunks>
ALLOT_INLINE typename V::F dot_block(const uint16_t* const (&keys)[kLanes], const float* query,
                                     int32_t head_dim) {
  using F = typename V::F;
  const int32_t pairs = kChunks != 0 ? kChunks / 2 : head_dim / (2 * kLanes);
  F sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    F sum = V::zero();
    for (int32_t c = 0; c < pairs; ++c) {
      F even, odd;
      V::load_even_odd(keys[i] + c * 2 * kLanes, even, odd);
      sum = V::fma(even, V::load(query + c * 2 * kLanes), sum);
      sum = V::fma(odd, V::load(query + c * 2 * kLanes + kLanes), sum);
    }
    if constexpr (kChunks == 0) {
      for (int32_t first = pairs * 2 * kLanes; first < head_dim; first += kLanes) {
        const F key = V::load_partial(keys[i] + first, std::min(kLanes, head_dim - first));
        sum = V::fma(key, V::load(query + first), sum);
      }
    }
    sums[i] = sum;
  }
  return V::reduce_add_each(sums);
}

// Arranges a query of head_dim floats, padded with zeros, in the order that dot_block needs.
template <class V>
void arrange_query(const float* query, int32_t head_dim, const float*, float* arranged) {
  std::copy(query, query + head_dim, arranged);
}
template <class V>
void arrange_query(const float* query, int32_t head_dim, const uint16_t*, float* arranged) {
  const int32_t paired = head_dim / (2 * kLanes) * (2 * kLanes);
  for (int32_t i = 0; i < paired; ++i) {
    const int32_t in_block = i % (2 * kLanes);
    arranged[i - in_block + in_block / 2 + in_block % 2 * kLanes] = query[i];
  }
  std::copy(query + paired, query + head_dim, arranged + paired);
}

// Replaces the scores of `keys` keys, padded to a multiple of 16, by exp(scale * (score - largest)), with
// zeros in the padding.
template <class V>
void exponentiate(float* row, int32_t keys, float scale) {
  using F = typename V::F;
  // The padding repeats the last key, so the largest score needs no mask.
  F largest = V::load(row);
  for (int32_t n = kLanes; n < keys; n += kLanes) largest = V::max(largest, V::load(row + n));
  const float to_power = scale * kLog2E;
  const F shift = V::set1(-V::reduce_max(largest) * to_power);
  for (int32_t n = 0; n < keys; n += kLanes) {
    V::store(row + n, exp2<V>(V::fma(V::load(row + n), V::set1(to_power), shift)));
  }
  for (int32_t n = keys; n % kLanes != 0; ++n) row[n] = 0;
}

// One query of a sequence for some KV heads, the rows of which are numbered KV head * group size + head in
// group. Loops over the cache go page by page with the heads inside, in the order of memory.
template <class V, class T, int kChunks>
class Decode {
  using F = typename V::F;

 public:
  Decode(const AttentionParams& p, const Item& item, Workspace& work)
      : p_(p),
        work_(work),
        data_(p, item),
        kv_heads_(item.num_kv_heads),
        rows_(item.num_kv_heads * data_.group),
        padded_dim_(whole_lanes(p.head_dim)),
        stride_(whole_lanes(int64_t{data_.keys})),
        read_(p, item.sequence, item.num_kv_heads, data_.keys, work) {}

  void run() {
    if (data_.samples == 0) {
      for (int32_t row = 0; row < rows_; ++row) std::fill(out(row), out(row) + p_.head_dim, T{});
      return;
    }
    offsets_ = data_.locate_keys(work_);
    weights_ = work_.weights.reserve(rows_ * stride_);
    score();
    for (int32_t row = 0; row < rows_; ++row) exponentiate<V>(weights(row), data_.keys, p_.scale);
    sums_ = work_.accumulator.reserve(int64_t{rows_} * padded_dim_);
    if (data_.samples == kDenseBudget) {
      sum_all();
    } else if (row_of(p_.method.estimator).scope == Scope::kHead) {
      sum_picked();
    } else {
      sum_shared();
    }
    read_.finish();
  }

 private:
  // The steps are functions of their own, not one after inlining: each then has all registers for its loop.
  float* weights(int32_t row) const { return weights_ + row * stride_; }
  float* sums(int32_t row) const { return sums_ + int64_t{row} * padded_dim_; }
  int32_t head_of(int32_t row) const { return data_.first_head + row; }
  T* out(int32_t row) const { return data_.out(0, head_of(row)); }
  const T* key(int32_t kv_head, int32_t key) const { return data_.key_pages() + place(kv_head, key); }
  const T* value(int32_t kv_head, int32_t key) const { return data_.value_pages() + place(kv_head, key); }
  // Offsets are those of the item's first KV head; the others follow it in each page.
  int64_t place(int32_t kv_head, int32_t key) const {
    return offsets_[key] + int64_t{kv_head} * p_.page_size * p_.head_dim;
  }

  // Prefetches a vector that is needed soon: pages lie anywhere, so the processor cannot predict them.
  void prefetch(const T* vector) const {
    const char* bytes = reinterpret_cast<const char*>(vector);
    for (size_t byte = 0; byte < p_.head_dim * sizeof(T); byte += 64) V::prefetch(bytes + byte);
  }
  static constexpr int32_t kKeysAhead = 6 * kLanes;
  void prefetch_keys(int32_t kv_head, int32_t first) const {
    for (int32_t n = first + kKeysAhead; n < std::min(first + kKeysAhead + kLanes, data_.keys); ++n)
      prefetch(key(kv_head, n));
  }

  // Scores before scaling of every key, the padding of the last block repeating the last key.
  void score() {
    if constexpr (V::kTiles && sizeof(T) == sizeof(uint16_t)) {
      if (data_.exact_scores && p_.head_dim % 32 == 0 && data_.group <= kLanes) {
        return score_by_tiles();
      }
    }
    float* queries = work_.query.reserve(int64_t{rows_ + 1} * padded_dim_);
    float* plain = queries + int64_t{rows_} * padded_dim_;
    std::fill(queries, plain + padded_dim_, 0.0f);
    for (int32_t row = 0; row < rows_; ++row) {
      score_query<V>(data_, 0, head_of(row), plain);
      arrange_query<V>(plain, p_.head_dim, data_.key_pages(), queries + int64_t{row} * padded_dim_);
    }
    for (int32_t first = 0; first < data_.keys; first += kLanes) {
      for (int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        prefetch_keys(kv_head, first);
        const T* keys[kLanes];
        for (int i = 0; i < kLanes; ++i) keys[i] = key(kv_head, std::min(first + i, data_.keys - 1));
        for (int32_t row = kv_head * data_.group; row < (kv_head + 1) * data_.group; ++row) {
          V::store(weights(row) + first,
                   dot_block<V, kChunks>(keys, queries + int64_t{row} * padded_dim_, p_.head_dim));
        }
      }
    }
  }

  // The same with matrix tiles: sixteen keys times all heads of a group in one instruction. head_dim is a
  // multiple of 32 and a group has at most 16 heads.
  [[gnu::noinline]] void score_by_tiles() {
    // Locals: a vector store may write anywhere as far as the compiler knows, so members would be read again
    // after each one.
    const int32_t head_dim = p_.head_dim;
    const int32_t group = data_.group;
    const int32_t num_keys = data_.keys;
    const int32_t kv_heads = kv_heads_;
    const int64_t stride = stride_;
    const int64_t kv_head_elements = int64_t{p_.page_size} * head_dim;
    const int64_t* const offsets = offsets_;
    const T* const pages = data_.key_pages();
    float* const weights_of_rows = weights_;
    const int32_t chunks = head_dim / 32;
    const int64_t tile_elements = int64_t{chunks} * 256;
    // Pairs of query elements [KV heads][chunks][16 pairs][16 heads], zeros beyond the group.
    uint32_t* const queries = work_.tile_queries.reserve(kv_heads * tile_elements);
    std::fill(queries, queries + kv_heads * tile_elements, 0u);
    for (int32_t row = 0; row < rows_; ++row) {
      uint32_t* column = queries + row / group * tile_elements + row % group;
      const T* query = data_.query(0, head_of(row));
      for (int32_t pair = 0; pair < head_dim / 2; ++pair)
        std::memcpy(column + pair * 16, query + 2 * pair, 4);
    }
    uint16_t* const staged = work_.tile_keys.reserve(int64_t{kLanes} * head_dim);
    alignas(64) float scores[kLanes * kLanes];
    const typename V::TileScope scope;
    for (int32_t first = 0; first < num_keys; first += kLanes) {
      const bool in_one_page = first + kLanes <= num_keys && p_.page_size % kLanes == 0;
      for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        const T* const of_head = pages + kv_head * kv_head_elements;
        for (int32_t n = first + kKeysAhead; n < std::min(first + kKeysAhead + kLanes, num_keys); ++n)
          prefetch(of_head + offsets[n]);
        const T* keys = of_head + offsets[first];
        if (!in_one_page) {
          for (int i = 0; i < kLanes; ++i) {
            std::memcpy(staged + i * head_dim, of_head + offsets[std::min(first + i, num_keys - 1)],
                        head_dim * sizeof(T));
          }
          keys = staged;
        }
        V::tile_product(keys, int64_t{head_dim} * 2, queries + kv_head * tile_elements, chunks, scores);
        float* const weights = weights_of_rows + int64_t{kv_head} * group * stride + first;
        for (int32_t g = 0; g < group; ++g) V::store(weights + g * stride, V::load_column(scores + g));
      }
    }
  }

  [[gnu::noinline]] void sum_all() {
    for (int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) read_.add_all(data_.keys);
    constexpr int32_t kKeys = 8;  // per step: amortises loading and storing the sums; divides the padding
    std::fill(sums_, sums_ + int64_t{rows_} * padded_dim_, 0.0f);
    for (int32_t first = 0; first < data_.keys; first += kKeys) {
      for (int32_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
        for (int32_t n = first + 4 * kKeys; n < std::min(first + 5 * kKeys, data_.keys); ++n)
          prefetch(value(kv_head, n));
        const T* vectors[kKeys];
        for (int k = 0; k < kKeys; ++k) vectors[k] = value(kv_head, std::min(first + k, data_.keys - 1));
        for (int32_t dim = 0; dim < p_.head_dim; dim += kLanes) add_values(vectors, kv_head, first, dim);
      }
    }
    for (int32_t row = 0; row < rows_; ++row) {
      write_row<V>(sums(row), 1 / RowCdf<V>(weights(row), data_.keys, work_).total(), p_.head_dim, out(row));
    }
  }

  // Adds lanes `dim` .. `dim` + 16 of some weighted values to every row of a KV head. Weights in the
  // padding are zero.
  template <int kKeys>
  void add_values(const T* const (&vectors)[kKeys], int32_t kv_head, int32_t first, int32_t dim) {
    const int32_t lanes = std::min(kLanes, p_.head_dim - dim);
    F values[kKeys];
    for (int k = 0; k < kKeys; ++k) {
      values[k] = lanes == kLanes ? V::load(vectors[k] + dim) : V::load_partial(vectors[k] + dim, lanes);
    }
    for (int32_t row = kv_head * data_.group; row < (kv_head + 1) * data_.group; ++row) {
      const float* w = weights(row) + first;
      F even = V::load(sums(row) + dim);
      F odd = V::zero();
      for (int k = 0; k < kKeys; k += 2) {
        even = V::fma(values[k], V::set1(w[k]), even);
        odd = V::fma(values[k + 1], V::set1(w[k + 1]), odd);
      }
      V::store(sums(row) + dim, even + odd);
    }
  }

  // Picks for all rows first, prefetching their values, and only then sums, so that the reads of
  // all rows overlap.
  [[gnu::noinline]] void sum_picked() {
    const int64_t most = int64_t{data_.samples} + data_.keys;  // picks of a row
    Pick* lists = work_.pick_lists.reserve(rows_ * most);
    Picks* picks = work_.row_picks.reserve(rows_);
    for (int32_t row = 0; row < rows_; ++row) {
      picks[row] =
          select_row<V>(weights(row), data_.keys, p_, data_.samples, data_.draws(0, head_of(row)), work_);
      if (picks[row].all) {
        read_.mark_all(row / data_.group, data_.keys);
        continue;
      }
      const Pick* chosen = work_.picks.reserve(0);
      for (int32_t i = 0; i < picks[row].count; ++i) {
        lists[row * most + i] = chosen[i];
        read_.mark(row / data_.group, chosen[i].key);
        prefetch(value(row / data_.group, chosen[i].key));
      }
    }
    for (int32_t row = 0; row < rows_; ++row) {
      const T* pages = data_.value_pages() + place(row / data_.group, 0) - offsets_[0];
      if (picks[row].all) {
        const float* w = weights(row);
        gather_values<V, T, kChunks>(
            pages, offsets_, data_.keys,
            [w](int32_t n) {
              return Pick{n, w[n]};
            },
            p_.head_dim, sums(row));
      } else {
        const Pick* list = lists + row * most;
        gather_values<V, T, kChunks>(
            pages, offsets_, picks[row].count, [list](int32_t i) { return list[i]; }, p_.head_dim, sums(row));
      }
      write_row<V>(sums(row), picks[row].scale, p_.head_dim, out(row));
    }
  }

  // Rows that the heads of a group, or of all groups, choose together.
  [[gnu::noinline]] void sum_shared() {
    const bool one_group = row_of(p_.method.estimator).scope == Scope::kGroup;
    const int32_t groups = one_group ? 1 : kv_heads_;
    const float* norms = data_.locate_norms(work_);
    for (int32_t kv_head = 0; kv_head < kv_heads_; kv_head += groups) {
      const int32_t first = kv_head * data_.group;
      SharedWeights shared{weights(first), stride_, groups, data_.group, data_.keys};
      attend_shared<V, T>(
          shared, p_, data_.samples, data_.draws(0, head_of(first)),
          data_.value_pages() + place(kv_head, 0) - offsets_[0], offsets_,
          norms == nullptr ? nullptr : norms + kv_head * stride_,
          [&](int32_t row) { return out(first + row); }, work_, read_, kv_head);
    }
  }

  const AttentionParams& p_;
  Workspace& work_;
  const ItemData<V, T> data_;
  const int32_t kv_heads_;
  const int32_t rows_;
  const int64_t padded_dim_;
  const int64_t stride_;  // of weights, a whole number of lanes
  const int64_t* offsets_ = nullptr;
  float* weights_ = nullptr;  // [rows, stride]
  float* sums_ = nullptr;     // [rows, padded head_dim]
  ReadRows read_;             // of each KV head
};

template <class V, class T>
void decode(const AttentionParams& p, const Item& item, Workspace& work) {
  switch (p.head_dim) {  // the usual sizes, unrolled
    case 32:
      return Decode<V, T, 2>(p, item, work).run();
    case 64:
      return Decode<V, T, 4>(p, item, work).run();
    case 128:
      return Decode<V, T, 8>(p, item, work).run();
    default:
      return Decode<V, T, 0>(p, item, work).run();
  }
}

}  // namespace allot::kernels::cpu
