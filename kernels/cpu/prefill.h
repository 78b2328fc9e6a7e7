// Many queries of one sequence: lanes are rows (query and head), so that the maximum, the exponential, the
// CDF and the systematic counts of sixteen rows run without any work across lanes. Rows of a head group share
// the keys and values, which are widened to float32 once an item. Everything a row computes depends on its
// own lane only and runs over the keys from the first on, so how a prompt is cut into launches and items does
// not change a bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/item_data.h"
#include "kernels/cpu/score_query.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/vec_math.h"

namespace allot::kernels::cpu {

// Keys summed before they join the running total of a row: keeps float32 sums of long rows exact enough.
inline constexpr int32_t kSumChunk = 256;

template <class V, class T>
class Prefill {
  using F = typename V::F;
  using I = typename V::I;

 public:
  Prefill(const AttentionParams& p, const Item& item, Workspace& work)
      : p_(p),
        work_(work),
        data_(p, item),
        padded_keys_((data_.keys + kLanes - 1) / kLanes * kLanes),
        padded_dim_((p.head_dim + kLanes - 1) / kLanes * kLanes) {}

  void run() {
    const int64_t rows = data_.item.num_queries * data_.group;
    if (data_.samples != 0) widen();
    for (int64_t first = 0; first < rows; first += kLanes) {
      const auto count = static_cast<int32_t>(std::min<int64_t>(kLanes, rows - first));
      if (data_.samples == 0) {
        for (int32_t lane = 0; lane < count; ++lane) {
          T* out = row_out(first + lane);
          std::fill(out, out + p_.head_dim, T{});
        }
      } else {
        attend_rows(first, count);
      }
    }
  }

 private:
  int64_t query_of(int64_t row) const { return row / data_.group; }
  int32_t head_of(int64_t row) const { return data_.first_head + static_cast<int32_t>(row % data_.group); }
  T* row_out(int64_t row) const { return data_.out(query_of(row), head_of(row)); }

  // Keys [padded keys, head_dim] and values [padded keys, padded head_dim] as float32, zeros in the padding.
  void widen() {
    const int64_t* offsets = data_.locate_keys(work_);
    keys_ = work_.keys.reserve(padded_keys_ * p_.head_dim + kLanes);
    values_ = work_.values.reserve(padded_keys_ * padded_dim_);
    for (int64_t key = 0; key < data_.keys; ++key) {
      widen_vector(data_.key_pages() + offsets[key], keys_ + key * p_.head_dim, p_.head_dim);
      widen_vector(data_.value_pages() + offsets[key], values_ + key * padded_dim_, padded_dim_);
    }
    std::fill(keys_ + data_.keys * int64_t{p_.head_dim}, keys_ + padded_keys_ * p_.head_dim, 0.0f);
    std::fill(values_ + data_.keys * padded_dim_, values_ + padded_keys_ * padded_dim_, 0.0f);
  }

  void widen_vector(const T* from, float* to, int64_t width) {
    for (int32_t i = 0; i < width; i += kLanes) {
      const int32_t left = p_.head_dim - i;
      if (left >= kLanes) {
        V::store(to + i, V::load(from + i));
      } else {
        V::store_partial(to + i, V::load_partial(from + i, left), std::min<int32_t>(kLanes, width - i));
      }
    }
  }

  void attend_rows(int64_t first_row, int32_t count) {
    int32_t visible[kLanes];
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      visible[lane] = data_.visible(query_of(first_row + std::min(lane, count - 1)));
    }
    load_queries(first_row, count);
    const int32_t keys = visible[kLanes - 1];
    const int32_t padded = (keys + kLanes - 1) / kLanes * kLanes;
    weights_ = work_.weights.reserve(int64_t{padded_keys_} * kLanes);
    F largest = V::set1(-3.0e38f);
    for (int32_t key = 0; key < padded; key += V::kKeyTile) largest = score_tile(key, visible, largest);
    const F total = exponentiate(padded, largest);

    if (data_.samples == kDenseBudget) {
      write_weighted(first_row, count, keys, V::set1(1.0f) / total);
    } else if (p_.estimator == Estimator::kSys) {
      count_systematic(first_row, count, keys, total);
      write_weighted(first_row, count, keys, V::set1(1.0f / static_cast<float>(data_.samples)));
    } else {
      for (int32_t lane = 0; lane < count; ++lane) write_picked(first_row + lane, lane, visible[lane]);
    }
  }

  // Queries [head_dim, 16], one row a lane; lanes beyond `count` are zero.
  void load_queries(int64_t first_row, int32_t count) {
    queries_ = work_.query.reserve(int64_t{p_.head_dim} * kLanes);
    float query[256];  // largest head_dim
    if (count < kLanes) std::fill(queries_, queries_ + int64_t{p_.head_dim} * kLanes, 0.0f);
    for (int32_t lane = 0; lane < count; ++lane) {
      score_query<V>(data_, query_of(first_row + lane), head_of(first_row + lane), query);
      for (int32_t i = 0; i < p_.head_dim; ++i) queries_[i * kLanes + lane] = query[i];
    }
  }

  // Scores of kKeyTile keys for the sixteen rows; keys a row does not see get the lowest float, which weighs
  // 0.
  F score_tile(int32_t first, const int32_t (&visible)[kLanes], F largest) {
    F sums[V::kKeyTile];
    for (int k = 0; k < V::kKeyTile; ++k) sums[k] = V::zero();
    const float* keys = keys_ + int64_t{first} * p_.head_dim;
    for (int32_t i = 0; i < p_.head_dim; ++i) {
      const F query = V::load(queries_ + int64_t{i} * kLanes);
#pragma GCC unroll 16
      for (int k = 0; k < V::kKeyTile; ++k) {
        sums[k] = V::fma(V::set1(keys[int64_t{k} * p_.head_dim + i]), query, sums[k]);
      }
    }
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

  // Scores to exp(scale * (score - largest)); returns each row's sum.
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

  // Weights to systematic counts floor(S P_n + u) - floor(S P_{n-1} + u). S is taken a little large and the
  // running count is cut at S, so that rounding at the end of a row never loses the last sample: each row's
  // counts add up to S.
  void count_systematic(int64_t first_row, int32_t count, int32_t keys, F total) {
    alignas(64) float u[kLanes] = {};
    for (int32_t lane = 0; lane < count; ++lane) {
      u[lane] = draw_uniform(data_.draws(query_of(first_row + lane), head_of(first_row + lane)), kRowDraw);
    }
    const F offset = V::load(u);
    const auto samples = static_cast<float>(data_.samples);
    const F limit = V::set1(samples);
    const F rate = V::set1(samples * (1 + 0x1p-22f)) / total;
    F base = V::zero();
    F before = V::zero();
    for (int32_t chunk = 0; chunk < keys; chunk += kSumChunk) {
      F sum = V::zero();
      for (int32_t key = chunk; key < std::min(keys, chunk + kSumChunk); ++key) {
        float* w = weights_ + int64_t{key} * kLanes;
        sum = sum + V::load(w);
        const F reached = V::min(V::floor(V::fma(base + sum, rate, offset)), limit);
        V::store(w, reached - before);
        before = reached;
      }
      base = base + sum;
    }
  }

  // out = scale * sum over keys of weight * value, for `count` rows.
  void write_weighted(int64_t first_row, int32_t count, int32_t keys, F scale) {
    alignas(64) float scales[kLanes];
    V::store(scales, scale);
    for (int32_t lane = 0; lane < count; lane += V::kRowTile) {
      for (int32_t i = 0; i < padded_dim_; i += 2 * kLanes) {
        if (i + kLanes < padded_dim_) {
          write_tile<2>(first_row, lane, count, keys, i, scales);
        } else {
          write_tile<1>(first_row, lane, count, keys, i, scales);
        }
      }
    }
  }

  template <int kChunks>
  void write_tile(int64_t first_row, int32_t first_lane, int32_t count, int32_t keys, int32_t dim,
                  const float* scales) {
    F sums[V::kRowTile][kChunks];
    for (int r = 0; r < V::kRowTile; ++r) {
      for (int c = 0; c < kChunks; ++c) sums[r][c] = V::zero();
    }
    const float* weights = weights_ + first_lane;
    const float* values = values_ + dim;
    for (int32_t key = 0; key < keys; ++key, weights += kLanes, values += padded_dim_) {
      F value[kChunks];
      for (int c = 0; c < kChunks; ++c) value[c] = V::load(values + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < V::kRowTile; ++r) {
        const F weight = V::set1(weights[r]);
        for (int c = 0; c < kChunks; ++c) sums[r][c] = V::fma(value[c], weight, sums[r][c]);
      }
    }
    for (int r = 0; r < V::kRowTile && first_lane + r < count; ++r) {
      T* out = row_out(first_row + first_lane + r) + dim;
      for (int c = 0; c < kChunks; ++c) {
        const int32_t lanes = std::min(kLanes, p_.head_dim - dim - c * kLanes);
        const F x = sums[r][c] * V::set1(scales[first_lane + r]);
        if (lanes == kLanes) {
          V::store(out + c * kLanes, x);
        } else if (lanes > 0) {
          V::store_partial(out + c * kLanes, x, lanes);
        }
      }
    }
  }

  // One row by way of its picks.
  void write_picked(int64_t row, int32_t lane, int32_t keys) {
    float* weights = work_.row.reserve(int64_t{padded_keys_});
    const int32_t padded = (keys + kLanes - 1) / kLanes * kLanes;
    for (int32_t key = 0; key < padded; ++key) weights[key] = weights_[int64_t{key} * kLanes + lane];
    const Picks picks =
        select_row<V>(weights, keys, p_, data_.samples, data_.draws(query_of(row), head_of(row)), work_);
    const Pick* list = work_.picks.reserve(0);
    const int32_t count = picks.all ? keys : picks.count;
    T* out = row_out(row);
    for (int32_t dim = 0; dim < padded_dim_; dim += kLanes) {
      F sum = V::zero();
      for (int32_t i = 0; i < count; ++i) {
        const Pick pick = picks.all ? Pick{i, weights[i]} : list[i];
        sum = V::fma(V::load(values_ + pick.key * padded_dim_ + dim), V::set1(pick.weight), sum);
      }
      sum = sum * V::set1(picks.scale);
      const int32_t lanes = std::min(kLanes, p_.head_dim - dim);
      if (lanes == kLanes) {
        V::store(out + dim, sum);
      } else {
        V::store_partial(out + dim, sum, lanes);
      }
    }
  }

  const AttentionParams& p_;
  Workspace& work_;
  const ItemData<V, T> data_;
  const int64_t padded_keys_;
  const int64_t padded_dim_;
  float* queries_ = nullptr;
  float* keys_ = nullptr;
  float* values_ = nullptr;
  float* weights_ = nullptr;  // [padded keys, 16]
};

}  // namespace allot::kernels::cpu
