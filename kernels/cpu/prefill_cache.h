// Keys and values of an item's sequence as the rows of a prompt read them: widened to float32 once, or in the
// order of matrix tiles. Padding up to whole lanes is zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/cpu/item_data.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

template <class V, class T>
class PrefillCache {
  using F = typename V::F;

 public:
  PrefillCache(const AttentionParams& p, const ItemData<V, T>& data, Workspace& work)
      : p_(p),
        data_(data),
        work_(work),
        padded_keys_(whole_lanes(data.keys)),
        padded_dim_(whole_lanes(p.head_dim)),
        head_elements_(int64_t{p.page_size} * p.head_dim) {}

  int64_t padded_keys() const { return padded_keys_; }
  int64_t padded_dim() const { return padded_dim_; }

  // Finds the keys in their pages; before anything is loaded.
  void locate_keys() { offsets_ = data_.locate_keys(work_); }
  // Of every key of a KV head, from that head's vectors in the pool on.
  const int64_t* offsets() const { return offsets_; }
  // `kv_head` counts from the item's first one.
  const T* value_pages(int32_t kv_head) const { return data_.value_pages() + kv_head * head_elements_; }

  // Loads the keys of a KV head, in the place of those of the last one.
  void load_keys(int32_t kv_head) {
    keys_ = work_.keys.reserve(padded_keys_ * p_.head_dim + kLanes);
    const T* const pages = key_pages(kv_head);
    for (int64_t key = 0; key < data_.keys; ++key)
      widen_vector(pages + offsets_[key], keys_ + key * p_.head_dim, p_.head_dim);
    std::fill(keys_ + data_.keys * int64_t{p_.head_dim}, keys_ + padded_keys_ * p_.head_dim, 0.0f);
  }
  // [padded keys, head_dim] from a key on.
  const float* keys(int32_t first) const { return keys_ + int64_t{first} * p_.head_dim; }

  void load_tile_keys(int32_t kv_head) {
    tile_keys_ = work_.tile_keys.reserve(padded_keys_ * p_.head_dim);
    const T* const pages = key_pages(kv_head);
    for (int64_t key = 0; key < data_.keys; ++key)
      std::memcpy(tile_keys_ + key * p_.head_dim, pages + offsets_[key], p_.head_dim * sizeof(T));
    std::fill(tile_keys_ + data_.keys * int64_t{p_.head_dim}, tile_keys_ + padded_keys_ * p_.head_dim,
              uint16_t{0});
  }
  // [padded keys, head_dim] from a key on.
  const uint16_t* tile_keys(int32_t first) const { return tile_keys_ + int64_t{first} * p_.head_dim; }

  // Loads the values of every KV head of the item.
  void load_values() {
    const int32_t kv_heads = data_.item.num_kv_heads;
    values_ = work_.values.reserve(kv_heads * padded_keys_ * padded_dim_);
    for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      const T* const pages = value_pages(kv_head);
      float* of_head = values_ + kv_head * padded_keys_ * padded_dim_;
      for (int64_t key = 0; key < data_.keys; ++key)
        widen_vector(pages + offsets_[key], of_head + key * padded_dim_, padded_dim_);
      std::fill(of_head + data_.keys * padded_dim_, of_head + padded_keys_ * padded_dim_, 0.0f);
    }
  }
  // [padded keys, padded head_dim] of a KV head; null where values are not loaded.
  const float* values(int32_t kv_head) const {
    return values_ == nullptr ? nullptr : values_ + kv_head * padded_keys_ * padded_dim_;
  }

  // Transposed values as pairs of keys [head_dim][pairs of keys], so that a tile has 16 elements
  // times 32 keys.
  void load_tile_values() {
    static constexpr uint16_t kZeros[256] = {};
    pair_stride_ = (data_.keys + 31) / 32 * 16;
    tile_values_ = work_.tile_values.reserve(p_.head_dim * pair_stride_);
    const auto value = [&](int64_t key) {
      return key < data_.keys ? data_.value_pages() + offsets_[key] : kZeros;
    };
    for (int64_t pair = 0; pair < pair_stride_; pair += kLanes) {
      for (int32_t dim = 0; dim < p_.head_dim; dim += kLanes) {
        F block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const int64_t key = 2 * (pair + i);
          block[i] = V::interleave(value(key) + dim, value(key + 1) + dim);
        }
        V::transpose(block);
        for (int i = 0; i < kLanes; ++i) {
          V::store(reinterpret_cast<float*>(tile_values_ + (dim + i) * pair_stride_ + pair), block[i]);
        }
      }
    }
  }
  // From an element on.
  const uint32_t* tile_values(int32_t dim) const { return tile_values_ + dim * pair_stride_; }
  // Pairs of keys, a multiple of 16.
  int64_t pair_stride() const { return pair_stride_; }

 private:
  const T* key_pages(int32_t kv_head) const { return data_.key_pages() + kv_head * head_elements_; }

  void widen_vector(const T* from, float* to, int64_t width) const {
    for (int32_t i = 0; i < width; i += kLanes) {
      const int32_t left = p_.head_dim - i;
      if (left >= kLanes) {
        V::store(to + i, V::load(from + i));
      } else {
        V::store_partial(to + i, V::load_partial(from + i, left), std::min<int32_t>(kLanes, width - i));
      }
    }
  }

  const AttentionParams& p_;
  const ItemData<V, T>& data_;
  Workspace& work_;
  const int64_t padded_keys_;
  const int64_t padded_dim_;
  const int64_t head_elements_;  // from a KV head's vectors in a page to the next one's
  const int64_t* offsets_ = nullptr;
  float* keys_ = nullptr;
  float* values_ = nullptr;
  uint16_t* tile_keys_ = nullptr;
  uint32_t* tile_values_ = nullptr;
  int64_t pair_stride_ = 0;
};

}  // namespace allot::kernels::cpu
