// Many queries of one sequence: lanes are rows (query and head), so that the maximum, the exponential, the
// CDF and the systematic counts of sixteen rows run without any work across lanes. Rows of a head group share
// the keys and values, which are widened to float32 once an item. Everything a row computes depends on its
// own lane only and runs over the keys from the first on, so how a prompt is cut into launches and items does
// not change a bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/item_data.h"
#include "kernels/cpu/lane_draws.h"
#include "kernels/cpu/lane_select.h"
#include "kernels/cpu/prefill_cache.h"
#include "kernels/cpu/read_rows.h"
#include "kernels/cpu/score_query.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/vec_math.h"

namespace allot::kernels::cpu {

template <class V, class T>
class Prefill {
  using F = typename V::F;
  using I = typename V::I;

 public:
  Prefill(const AttentionParams& p, const Item& item, Workspace& work)
      : p_(p),
        work_(work),
        data_(p, item),
        counts_row_(row_of(p.method.estimator).counts_row),
        scope_(row_of(p.method.estimator).scope),
        pick_lanes_(kPickLanes[p.method.estimator]),
        cache_(p, data_, work),
        read_(p, item.sequence, item.num_queries * item.num_kv_heads, data_.keys, work) {
    if constexpr (kMayTile) {
      score_by_tiles_ = data_.exact_scores && p.head_dim % 32 == 0;
      // Counts up to 256 are exact in bfloat16; probabilities lose no more precision than the
      // output loses anyway.
      const bool counts = counts_row_ && data_.samples > 0 && data_.samples <= 256;
      sum_by_tiles_ = p.head_dim % 32 == 0 && (counts || data_.samples == kDenseBudget);
    }
  }

  void run() {
    if constexpr (kMayTile) {
      if (score_by_tiles_ || sum_by_tiles_) {
        const typename V::TileScope scope;
        attend_all();
        return;
      }
    }
    attend_all();
  }

 private:
  static constexpr Methods::Table<typename PickLanesOf<V>::Function, PickLanesOf<V>> kPickLanes{};
  // Widening a value costs about as much as reading it so often saves.
  static constexpr int32_t kReadsAKey = 2;
  // Matrix tiles take bfloat16 operands.
  static constexpr bool kMayTile = V::kTiles && sizeof(T) == sizeof(uint16_t);

  void attend_all() {
    places_ = work_.places.reserve(cache_.padded_keys());
    factors_ = work_.factors.reserve(cache_.padded_keys() * data_.group);
    if (data_.samples > 0 && scope_ != Scope::kHead) {
      attend_together();
    } else {
      attend_alone();
    }
    read_.finish();
  }

  // Sixteen rows at a time, whatever their queries and heads.
  void attend_alone() {
    if (data_.samples != 0) load_cache();
    weights_ = work_.weights.reserve(cache_.padded_keys() * kLanes);
    Position next;
    for (int64_t left = data_.item.num_queries * data_.group; left > 0; left -= kLanes) {
      count_ = static_cast<int32_t>(std::min<int64_t>(kLanes, left));
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        rows_[lane] = next;
        if (lane >= count_ - 1) continue;  // lanes without a row repeat the last one
        if (++next.head_in_group == data_.group) next = {next.query + 1, 0};
      }
      if (++next.head_in_group == data_.group) next = {next.query + 1, 0};
      if (data_.samples == 0) {
        for (int32_t lane = 0; lane < count_; ++lane) std::fill(out(lane), out(lane) + p_.head_dim, T{});
      } else {
        attend_rows();
      }
    }
  }

  // Sixteen queries at a time, the rows of their lanes those of one head after the other; the heads of the
  // scope choose together.
  void attend_together() {
    cache_.locate_keys();
    const float* norms = data_.locate_norms(work_);
    const int32_t kv_heads = data_.item.num_kv_heads;
    const int32_t heads = kv_heads * data_.group;
    const int64_t head_weights = cache_.padded_keys() * kLanes;
    weights_ = work_.weights.reserve(heads * head_weights);
    float* const all_weights = weights_;
    float* scales = work_.scales.reserve(int64_t{heads} * kLanes);  // 1 / each row's sum of weights
    if (kv_heads == 1) load_keys(0);
    if (reads_often(1, rows_of_group(p_.method.unit, data_.samples, data_.group))) cache_.load_values();
    for (int64_t first = 0; first < data_.item.num_queries; first += kLanes) {
      count_ = static_cast<int32_t>(std::min<int64_t>(kLanes, data_.item.num_queries - first));
      const int32_t keys = data_.visible(first + count_ - 1);
      float* sizes = work_.sizes.reserve(int64_t{kv_heads} * keys * kLanes);
      for (int32_t head = 0; head < heads; ++head) {
        const int32_t kv_head = head / data_.group, in_group = head % data_.group;
        if (kv_heads > 1 && in_group == 0) load_keys(kv_head);
        for (int32_t lane = 0; lane < kLanes; ++lane)
          rows_[lane] = {first + std::min(lane, count_ - 1), head};
        weights_ = all_weights + head * head_weights;
        const F scale = V::set1(1.0f) / weigh();
        V::store(scales + int64_t{head} * kLanes, scale);
        const bool last = norms != nullptr && in_group == data_.group - 1;
        add_probabilities(keys, scale, in_group == 0,
                          last ? norms + int64_t{kv_head} * cache_.padded_keys() : nullptr,
                          sizes + int64_t{kv_head} * keys * kLanes);
      }
      weights_ = all_weights;
      write_together(first, choose_together(first, {sizes, kv_heads * keys, count_}), keys, scales);
    }
  }

  // Adds each row's probabilities to the sizes of its group's keys, or sets them, and multiplies by the norms
  // where there are some.
  void add_probabilities(int32_t keys, F scale, bool set, const float* norms, float* sizes) const {
    for (int32_t key = 0; key < keys; ++key) {
      const int64_t at = int64_t{key} * kLanes;
      F size = V::load(weights_ + at) * scale;
      if (!set) size = V::load(sizes + at) + size;
      V::store(sizes + at, norms == nullptr ? size : size * V::set1(norms[key]));
    }
  }

  // The value rows of each query, numbered KV head * keys + key.
  LanePicks<V> choose_together(int64_t first, const LaneSizes& rows) {
    DrawRow draws[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane)
      draws[lane] = data_.draws(first + std::min(lane, count_ - 1), data_.first_head);
    alignas(64) float u[kLanes];
    draw_uniforms<V>(draws, kRowDraw, u);
    const int64_t of_group = rows_of_group(p_.method.unit, data_.samples, data_.group);
    if (row_of(p_.method.estimator).spaced) {
      const auto per_mass = static_cast<float>(static_cast<double>(of_group) / data_.group);
      return level_lanes<V>(rows, per_mass, u, work_);
    }
    int32_t wanted[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const int64_t visible = data_.visible(first + std::min(lane, count_ - 1));
      wanted[lane] = static_cast<int32_t>(std::min(of_group, visible) * data_.item.num_kv_heads);
    }
    return threshold_lanes<V>(
        rows, wanted, u, [](F, F rate) { return rate; }, work_);
  }

  void write_together(int64_t first, const LanePicks<V>& picks, int32_t keys, const float* scales) {
    const int32_t kv_heads = data_.item.num_kv_heads;
    const int64_t head_weights = cache_.padded_keys() * kLanes;
    for (int32_t lane = 0; lane < count_; ++lane) {
      for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        const int32_t head = kv_head * data_.group;
        const float* weights = weights_ + head * head_weights + lane;
        list_values(picks, lane, kv_head, keys,
                    [=, group = data_.group, stride = cache_.padded_keys(), factors = factors_](
                        int32_t i, int32_t key, float rate) {
                      const float* of_key = weights + int64_t{key} * kLanes;
                      for (int32_t h = 0; h < group; ++h)
                        factors[h * stride + i] = of_key[h * head_weights] * rate;
                    });
        gather_list(
            kv_head, data_.group, [&](int32_t h) { return scales[int64_t{head + h} * kLanes + lane]; },
            [&](int32_t h) { return data_.out(first + lane, data_.first_head + head + h); });
      }
    }
  }

  // Copies the first `keys` weights of a row out of the lanes, with zeros up to a whole number of lanes.
  void copy_row(int32_t lane, int32_t keys, float* row) const {
    for (int32_t key = 0; key < keys; ++key) row[key] = weights_[int64_t{key} * kLanes + lane];
    for (int32_t key = keys; key % kLanes != 0; ++key) row[key] = 0;
  }

  // A row of the item. Its head counts from the first one of the item's first KV head.
  struct Position {
    int64_t query = 0;
    int32_t head_in_group = 0;
  };
  int64_t query_of(int32_t lane) const { return rows_[lane].query; }
  int32_t head_of(int32_t lane) const { return data_.first_head + rows_[lane].head_in_group; }
  T* out(int32_t lane) const { return data_.out(query_of(lane), head_of(lane)); }

  // What the rows of an item with one KV head read. Values that rows read one at a time may stay where they
  // lie.
  void load_cache() {
    cache_.locate_keys();
    load_keys(0);
    if constexpr (kMayTile) {
      if (sum_by_tiles_) return cache_.load_tile_values();
    }
    const bool from_lists = pick_lanes_ != nullptr || (counts_row_ && lists_counts(data_.visible(0)));
    if (data_.samples == kDenseBudget || !from_lists || reads_often(data_.group, data_.samples))
      cache_.load_values();
  }

  void load_keys(int32_t kv_head) {
    if constexpr (kMayTile) {
      if (score_by_tiles_) return cache_.load_tile_keys(kv_head);
    }
    cache_.load_keys(kv_head);
  }

  // Whether systematic counts become lists of keys in rows that see so many.
  bool lists_counts(int32_t keys) const {
    return !sum_by_tiles_ && keys > V::kKeysASample * int64_t{data_.samples};
  }

  // Whether lists of `samples` keys, `lists` for each query and KV head, read a value so often that reading
  // it as float32 saves more than widening it costs.
  bool reads_often(int64_t lists, int64_t samples) const {
    return sizeof(T) < sizeof(float) &&
           data_.item.num_queries * lists * samples >= kReadsAKey * int64_t{data_.keys};
  }

  // weights_, which has room for the padded keys, becomes exp(scale * (score - largest)) of the rows in the
  // lanes; returns each row's sum.
  F weigh() {
    int32_t visible[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane) visible[lane] = data_.visible(query_of(lane));
    load_queries();
    const int32_t padded = (visible[kLanes - 1] + V::kKeyTile - 1) / V::kKeyTile * V::kKeyTile;
    F largest = V::set1(-3.0e38f);
    for (int32_t key = 0; key < padded; key += V::kKeyTile) largest = score_tile(key, visible, largest);
    return exponentiate(padded, largest);
  }

  void attend_rows() {
    const F total = weigh();
    const int32_t keys = data_.visible(query_of(kLanes - 1));
    if (data_.samples == kDenseBudget) {
      write_weighted(keys, V::set1(1.0f) / total);
    } else if (counts_row_ && lists_counts(keys)) {
      return write_counted(keys, total);
    } else if (counts_row_) {
      count_systematic(keys, total);
      write_weighted(keys, V::set1(1.0f / static_cast<float>(data_.samples)));
    } else if (pick_lanes_ != nullptr) {
      return write_chosen(keys, total);
    } else {
      for (int32_t lane = 0; lane < count_; ++lane) write_picked(lane, data_.visible(query_of(lane)));
      return;
    }
    if (read_.counts()) mark_weighted();
  }

  // Marks the keys that have a weight, or all that a row sees where attention is exact.
  void mark_weighted() {
    for (int32_t lane = 0; lane < count_; ++lane) {
      for (int32_t key = 0; key < data_.visible(query_of(lane)); ++key) {
        if (data_.samples == kDenseBudget || weights_[int64_t{key} * kLanes + lane] > 0)
          read_.mark(query_of(lane), key);
      }
    }
  }

  // Queries [head_dim, 16], one row a lane; lanes beyond count_ are zero.
  void load_queries() {
    if constexpr (kMayTile) {
      if (score_by_tiles_) return load_tile_queries();
    }
    queries_ = work_.query.reserve(cache_.padded_dim() * kLanes);
    if (data_.exact_scores) return load_exact_queries();
    float query[256];  // largest head_dim
    if (count_ < kLanes) std::fill(queries_, queries_ + int64_t{p_.head_dim} * kLanes, 0.0f);
    for (int32_t lane = 0; lane < count_; ++lane) {
      score_query<V>(data_, query_of(lane), head_of(lane), query);
      for (int32_t i = 0; i < p_.head_dim; ++i) queries_[i * kLanes + lane] = query[i];
    }
  }

  void load_exact_queries() {
    for (int32_t dim = 0; dim < p_.head_dim; dim += kLanes) {
      F block[kLanes];
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        block[lane] = V::zero();
        if (lane >= count_) continue;
        const T* query = data_.query(query_of(lane), head_of(lane)) + dim;
        const int32_t left = p_.head_dim - dim;
        block[lane] = left >= kLanes ? V::load(query) : V::load_partial(query, left);
      }
      V::transpose(block);
      for (int i = 0; i < kLanes; ++i) V::store(queries_ + int64_t{dim + i} * kLanes, block[i]);
    }
  }

  // Pairs of query elements [head_dim / 2, 16].
  void load_tile_queries() {
    tile_queries_ = work_.tile_queries.reserve(int64_t{p_.head_dim} / 2 * kLanes);
    for (int32_t dim = 0; dim < p_.head_dim; dim += 2 * kLanes) {
      F block[kLanes];
      for (int32_t lane = 0; lane < kLanes; ++lane) {
        block[lane] = V::zero();
        if (lane < count_) {
          const T* query = data_.query(query_of(lane), head_of(lane)) + dim;
          std::memcpy(&block[lane], query, sizeof(F));
        }
      }
      V::transpose(block);
      float* pairs = reinterpret_cast<float*>(tile_queries_ + int64_t{dim} / 2 * kLanes);
      for (int i = 0; i < kLanes; ++i) V::store(pairs + i * kLanes, block[i]);
    }
  }

  // Scores of kKeyTile keys for the sixteen rows; keys a row does not see get the lowest float,
  // which weighs 0.
  F score_tile(int32_t first, const int32_t (&visible)[kLanes], F largest) {
    F sums[V::kKeyTile];
    dot_tile(first, sums);
    if (first + V::kKeyTile > visible[0]) {
      const I limit = V::load_index(visible);
      for (int k = 0; k < V::kKeyTile; ++k) {
        sums[k] = V::select_less(V::set1(first + k), limit, sums[k], V::set1(-3.0e38f));
      }
    }
    for (int k = 0; k < V::kKeyTile; ++k) {
      V::store(weights_ + int64_t{first + k} * kLanes, sums[k]);
      largest = V::max(largest, sums[k]);
    }
    return largest;
  }

  void dot_tile(int32_t first, F (&sums)[V::kKeyTile]) {
    if constexpr (kMayTile) {
      if (score_by_tiles_) {
        float* scores = weights_ + int64_t{first} * kLanes;
        V::tile_product(cache_.tile_keys(first), int64_t{p_.head_dim} * 2, tile_queries_, p_.head_dim / 32,
                        scores);
        for (int k = 0; k < V::kKeyTile; ++k) sums[k] = V::load(scores + k * kLanes);
        return;
      }
    }
    for (int k = 0; k < V::kKeyTile; ++k) sums[k] = V::zero();
    const float* keys = cache_.keys(first);
    for (int32_t i = 0; i < p_.head_dim; ++i) {
      const F query = V::load(queries_ + int64_t{i} * kLanes);
#pragma GCC unroll 16
      for (int k = 0; k < V::kKeyTile; ++k) {
        sums[k] = V::fma(V::set1(keys[int64_t{k} * p_.head_dim + i]), query, sums[k]);
      }
    }
  }

  // Replaces scores by exp(scale * (score - largest)); returns each row's sum.
  F exponentiate(int32_t keys, F largest) {
    const F to_power = V::set1(p_.scale * kLog2E);
    const F shift = V::zero() - largest * to_power;
    F total = V::zero();
    for (int32_t chunk = 0; chunk < keys; chunk += kSumChunk) {
      F sum = V::zero();
      for (int32_t key = chunk; key < std::min(keys, chunk + kSumChunk); ++key) {
        float* w = weights_ + int64_t{key} * kLanes;
        const F weight = exp2<V>(V::fma(V::load(w), to_power, shift));
        sum = sum + weight;
        V::store(w, weight);
      }
      total = total + sum;
    }
    return total;
  }

  // One uniform number for each row in the lanes.
  void draw_row_uniforms(float (&u)[kLanes]) const {
    DrawRow draws[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane) draws[lane] = data_.draws(query_of(lane), head_of(lane));
    draw_uniforms<V>(draws, kRowDraw, u);
  }

  // Replaces weights by systematic counts.
  void count_systematic(int32_t keys, F total) {
    alignas(64) float u[kLanes];
    draw_row_uniforms(u);
    count_lanes<V>({weights_, keys, count_}, data_.samples, total, u,
                   [this](int32_t key, F count) { V::store(weights_ + int64_t{key} * kLanes, count); });
  }

  // out = scale * sum over keys of weight * value, for every row.
  void write_weighted(int32_t keys, F scale) {
    if constexpr (kMayTile) {
      if (sum_by_tiles_) return write_by_tiles(keys, scale);
    }
    alignas(64) float scales[kLanes];
    V::store(scales, scale);
    for (int32_t lane = 0; lane < count_; lane += V::kRowTile) {
      for (int32_t i = 0; i < cache_.padded_dim(); i += 2 * kLanes) {
        if (i + kLanes < cache_.padded_dim()) {
          write_tile<2>(lane, keys, i, scales);
        } else {
          write_tile<1>(lane, keys, i, scales);
        }
      }
    }
  }

  void write_by_tiles(int32_t keys, F scale) {
    const int32_t chunks = (keys + 31) / 32;
    const int32_t weighted = whole_lanes(keys);  // keys that weights_ covers
    tile_weights_ = work_.tile_weights.reserve(int64_t{chunks} * 256);
    for (int32_t pair = 0; pair < chunks * kLanes; ++pair) {
      const float* w = weights_ + int64_t{2 * pair} * kLanes;
      const F pairs = 2 * pair < weighted ? V::pack_pairs(V::load(w), V::load(w + kLanes)) : V::zero();
      V::store(reinterpret_cast<float*>(tile_weights_ + int64_t{pair} * kLanes), pairs);
    }
    alignas(64) float sums[kLanes * kLanes];  // [elements, rows]
    for (int32_t dim = 0; dim < p_.head_dim; dim += kLanes) {
      V::tile_product(reinterpret_cast<const uint16_t*>(cache_.tile_values(dim)), cache_.pair_stride() * 4,
                      tile_weights_, chunks, sums);
      F block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = V::load(sums + i * kLanes) * scale;
      V::transpose(block);
      for (int32_t lane = 0; lane < count_; ++lane) V::store(out(lane) + dim, block[lane]);
    }
  }

  template <int kChunks>
  void write_tile(int32_t first_lane, int32_t keys, int32_t dim, const float* scales) {
    F sums[V::kRowTile][kChunks];
    for (int r = 0; r < V::kRowTile; ++r) {
      for (int c = 0; c < kChunks; ++c) sums[r][c] = V::zero();
    }
    const float* weights = weights_ + first_lane;
    const float* values = cache_.values(0) + dim;
    for (int32_t key = 0; key < keys; ++key, weights += kLanes, values += cache_.padded_dim()) {
      F value[kChunks];
      for (int c = 0; c < kChunks; ++c) value[c] = V::load(values + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < V::kRowTile; ++r) {
        const F weight = V::set1(weights[r]);
        for (int c = 0; c < kChunks; ++c) sums[r][c] = V::fma(value[c], weight, sums[r][c]);
      }
    }
    for (int r = 0; r < V::kRowTile && first_lane + r < count_; ++r) {
      T* row_out = out(first_lane + r) + dim;
      for (int c = 0; c < kChunks; ++c) {
        const int32_t lanes = std::min(kLanes, p_.head_dim - dim - c * kLanes);
        const F x = sums[r][c] * V::set1(scales[first_lane + r]);
        if (lanes == kLanes) {
          V::store(row_out + c * kLanes, x);
        } else if (lanes > 0) {
          V::store_partial(row_out + c * kLanes, x, lanes);
        }
      }
    }
  }

  // The same as count_systematic and write_weighted, to the bit, without the keys that have no sample.
  void write_counted(int32_t keys, F total) {
    alignas(64) float u[kLanes];
    draw_row_uniforms(u);
    write_picks(systematic_lanes<V>({weights_, keys, count_}, data_.samples, total, u, work_), keys,
                V::set1(1.0f / static_cast<float>(data_.samples)));
  }

  // Computes the rows from what they choose all at once.
  void write_chosen(int32_t keys, F total) {
    alignas(64) float u[kLanes];
    draw_row_uniforms(u);
    write_picks(pick_lanes_({weights_, keys, count_}, data_.samples, u, work_), keys, V::set1(1.0f) / total);
  }

  // Each row: its scale times the sum of its picks, each times its weight.
  void write_picks(const LanePicks<V>& picks, int32_t keys, F scale) {
    alignas(64) float scales[kLanes];
    V::store(scales, scale);
    for (int32_t lane = 0; lane < count_; ++lane) {
      list_values(picks, lane, 0, keys,
                  [factors = factors_](int32_t i, int32_t, float weight) { factors[i] = weight; });
      gather_list(
          0, 1, [&](int32_t) { return scales[lane]; }, [&](int32_t) { return out(lane); });
    }
  }

  // Lists the values of a KV head that a row takes, and calls weigh(i, key, weight) for the i-th.
  template <class Weigh>
  void list_values(const LanePicks<V>& picks, int32_t lane, int32_t kv_head, int32_t keys,
                   const Weigh& weigh) {
    // Locals: what is stored in the list could be members as far as the compiler knows.
    int64_t* const places = places_;
    const int64_t* const offsets = cache_.values(0) == nullptr ? cache_.offsets() : nullptr;
    const int64_t width = cache_.padded_dim();
    const int32_t first = kv_head * keys;
    listed_ = picks.visit(lane, first, first + keys, [=](int32_t i, int32_t numbered, float weight) {
      const int32_t key = numbered - first;
      places[i] = offsets != nullptr ? offsets[key] : key * width;
      weigh(i, key, weight);
    });
    if (!read_.counts()) return;
    const int64_t set = query_of(lane) * data_.item.num_kv_heads + kv_head;
    picks.visit(lane, first, first + keys,
                [&](int32_t, int32_t numbered, float) { read_.mark(set, numbered - first); });
  }

  // Writes the estimates of `heads` heads from the list, which is of a KV head.
  template <class Scale, class Out>
  void gather_list(int32_t kv_head, int32_t heads, const Scale& scale, const Out& out) {
    const auto gather = [&](const auto* base) {
      gather_heads<V>(ValueList<std::remove_cvref_t<decltype(*base)>>{.base = base,
                                                                      .places = places_,
                                                                      .factors = factors_,
                                                                      .stride = cache_.padded_keys(),
                                                                      .count = listed_},
                      heads, p_.head_dim, scale, out);
    };
    if (const float* values = cache_.values(kv_head); values != nullptr) return gather(values);
    gather(cache_.value_pages(kv_head));
  }

  // Computes one row from its picks.
  void write_picked(int32_t lane, int32_t keys) {
    float* weights = work_.row.reserve(cache_.padded_keys());
    copy_row(lane, keys, weights);
    const Picks picks =
        select_row<V>(weights, keys, p_, data_.samples, data_.draws(query_of(lane), head_of(lane)), work_);
    const Pick* list = work_.picks.reserve(0);
    const int32_t count = picks.all ? keys : picks.count;
    if (read_.counts()) {
      for (int32_t i = 0; i < count; ++i) read_.mark(query_of(lane), picks.all ? i : list[i].key);
    }
    const float* const values = cache_.values(0);
    T* row_out = out(lane);
    for (int32_t dim = 0; dim < cache_.padded_dim(); dim += kLanes) {
      F sum = V::zero();
      for (int32_t i = 0; i < count; ++i) {
        const Pick pick = picks.all ? Pick{i, weights[i]} : list[i];
        sum = V::fma(V::load(values + pick.key * cache_.padded_dim() + dim), V::set1(pick.weight), sum);
      }
      sum = sum * V::set1(picks.scale);
      const int32_t lanes = std::min(kLanes, p_.head_dim - dim);
      if (lanes == kLanes) {
        V::store(row_out + dim, sum);
      } else {
        V::store_partial(row_out + dim, sum, lanes);
      }
    }
  }

  const AttentionParams& p_;
  Workspace& work_;
  const ItemData<V, T> data_;
  const bool counts_row_;
  const Scope scope_;
  const typename PickLanesOf<V>::Function pick_lanes_;  // null: rows are selected one by one
  PrefillCache<V, T> cache_;
  ReadRows read_;      // of each query and KV head
  int32_t count_ = 0;  // rows in the lanes
  Position rows_[kLanes];
  int32_t listed_ = 0;         // value vectors in the list
  int64_t* places_ = nullptr;  // [listed] in the loaded values, or in the pages where there are none
  float* factors_ = nullptr;   // [heads, padded keys] of which the first `listed` are used
  float* queries_ = nullptr;
  float* weights_ = nullptr;  // [padded keys, 16]; [heads, padded keys, 16] of heads that choose together
  bool score_by_tiles_ = false;
  bool sum_by_tiles_ = false;
  uint32_t* tile_queries_ = nullptr;  // [head_dim / 2, 16]
  uint32_t* tile_weights_ = nullptr;  // [pairs of keys, 16]
};

}  // namespace allot::kernels::cpu
