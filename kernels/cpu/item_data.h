// Where a work item's data lies: queries, cached vectors, budgets, draws, outputs. Shared by
// decode and prefill.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/launch.h"

namespace allot::kernels::cpu {

// V is the vector type, T the storage type of the launch's elements.
template <class V, class T>
struct ItemData {
  ItemData(const AttentionParams& params, const Item& work_item)
      : p(params),
        item(work_item),
        group(params.num_q_heads / params.num_kv_heads),
        first_head(item.kv_head * group) {
    const int64_t queries = p.query_start[item.sequence + 1] - p.query_start[item.sequence];
    first_visible = static_cast<int32_t>(p.lengths[item.sequence] - (queries - 1 - item.first_query));
    keys = first_visible + static_cast<int32_t>(item.num_queries) - 1;
    // Exact attention ignores budgets; a dense budget makes one sequence exact.
    const bool exact = !row_of(p.method.estimator).samples || p.budgets[item.sequence] == kDenseBudget;
    samples = exact ? kDenseBudget : p.budgets[item.sequence];
    exact_scores = has_exact_scores(p, item.sequence);
  }

  const T* query(int64_t query, int32_t head) const {
    return static_cast<const T*>(p.query) + token(query) * p.query_stride + int64_t{head} * p.head_dim;
  }
  T* out(int64_t query, int32_t head) const {
    return static_cast<T*>(p.out) + (token(query) * p.num_q_heads + head) * p.head_dim;
  }
  const T* key_pages() const { return static_cast<const T*>(p.key_pages); }
  const T* value_pages() const { return static_cast<const T*>(p.value_pages); }
  // `query` counts from the item's first query.
  int32_t visible(int64_t query) const { return first_visible + static_cast<int32_t>(query); }
  DrawRow draws(int64_t query, int32_t head) const {
    DrawRow row;
    row.layer = p.layer;
    row.head = static_cast<uint32_t>(p.first_head + head);
    row.position = static_cast<uint32_t>(visible(query) - 1);
    if (p.draws != nullptr) {
      row.key = p.draws[item.sequence].key;
      row.question = p.draws[item.sequence].question;
    }
    return row;
  }
  // Element offsets in the pages of the vectors of keys [0, keys).
  const int64_t* locate_keys(Workspace& work) const {
    int64_t* offsets = work.offsets.reserve(keys);
    const int32_t* pages = p.page_table + item.sequence * p.max_pages;
    const int64_t page_elements = int64_t{p.num_kv_heads} * p.page_size * p.head_dim;
    const int64_t head_elements = int64_t{item.kv_head} * p.page_size * p.head_dim;
    for (int32_t key = 0; key < keys; ++pages) {
      const int64_t base = *pages * page_elements + head_elements;
      for (int32_t slot = 0; slot < p.page_size && key < keys; ++slot) {
        offsets[key++] = base + int64_t{slot} * p.head_dim;
      }
    }
    return offsets;
  }

  // Norms of the values of keys [0, keys) for every KV head of the item: [KV heads, padded keys], zeros in
  // the padding up to a whole number of lanes. Null where the method uses none.
  const float* locate_norms(Workspace& work) const {
    if (!uses_value_norms(p.method)) return nullptr;
    const int64_t padded = whole_lanes(int64_t{keys});
    float* norms = work.norms.reserve(item.num_kv_heads * padded);
    const int32_t* pages = p.page_table + item.sequence * p.max_pages;
    for (int32_t head = 0; head < item.num_kv_heads; ++head) {
      float* of_head = norms + head * padded;
      for (int32_t key = 0; key < keys; key += p.page_size) {
        const int64_t row = int64_t{pages[key / p.page_size]} * p.num_kv_heads + item.kv_head + head;
        std::copy_n(p.value_norms + row * p.page_size, std::min(p.page_size, keys - key), of_head + key);
      }
      std::fill(of_head + keys, of_head + padded, 0.0f);
    }
    return norms;
  }

  const AttentionParams& p;
  const Item& item;
  int32_t group;          // query heads of a KV head
  int32_t first_head;     // first query head of the item's first KV head
  int32_t first_visible;  // keys that the item's first query sees
  int32_t keys;           // keys that the item's last query sees
  int32_t samples;        // S; kDenseBudget = exact, for whatever reason
  bool exact_scores;      // scores use the queries as they are

 private:
  int64_t token(int64_t query) const { return p.query_start[item.sequence] + item.first_query + query; }
};

}  // namespace allot::kernels::cpu
