#include "kernels/split_keys.h"

#include <cstring>
#include <span>
#include <vector>

#include "kernels/element.h"
#include "kernels/hadamard.h"
#include "kernels/row_checks.h"

namespace allot::kernels {
namespace {

std::vector<float> floats(const void* data, DType dtype, int64_t first, int32_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) x[i] = element(data, dtype, first + i);
  return x;
}

// By the square root of its size more than a rotation: the product of two such vectors is divided by it.
void rotate(std::span<float> x) {
  const auto size = static_cast<int32_t>(x.size());
  for (int32_t i = 0; i < size; ++i) x[i] = rotation_negates(i) ? -x[i] : x[i];
  hadamard(x);
}

// Rotates x and writes its planes; returns the unit.
float split(std::span<float> x, int8_t* high, int8_t* low) {
  rotate(x);
  float largest = 0;
  for (const float element : x) largest = larger_magnitude(largest, element);
  const SplitUnits units = split_units(largest);
  for (size_t i = 0; i < x.size(); ++i) {
    const SplitElement element = split_element(x[i], units);
    high[i] = element.high;
    if (low != nullptr) low[i] = element.low;
  }
  return units.unit;
}

}  // namespace

void store_split_keys(const StoreSplitKeysParams& p) {
  check_fields(p, kHostPlace);
  const int64_t slots = p.num_pages * p.page_size;
  for (int64_t token = 0; token < p.tokens; ++token) {
    if (p.slots[token] >= slots) {
      RowCheck("store_split_keys", kHostPlace)
          .refuse("token {} has cache slot {}; the {} pages of {} tokens have slots 0 to {}", token,
                  p.slots[token], p.num_pages, p.page_size, slots - 1);
    }
    if (p.slots[token] < 0) continue;
    for (int32_t head = 0; head < p.num_kv_heads; ++head) {
      std::vector<float> x =
          floats(p.keys, p.dtype, token * p.key_stride + int64_t{head} * p.head_dim, p.head_dim);
      const int64_t row =
          (p.slots[token] / p.page_size * p.num_kv_heads + head) * p.page_size + p.slots[token] % p.page_size;
      auto* const block = static_cast<char*>(p.high) + row / kSplitBlockKeys * split_block_bytes(p.head_dim);
      const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
      std::vector<int8_t> high(x.size());
      const float unit = split(x, high.data(), p.low == nullptr ? nullptr : p.low + row * p.head_dim);
      for (int32_t i = 0; i < p.head_dim; ++i) block[split_high_offset(p.head_dim, key, i)] = high[i];
      std::memcpy(block + split_unit_offset(p.head_dim, key), &unit, sizeof(unit));
    }
  }
}

void split_queries(const SplitQueriesParams& p) {
  check_fields(p, kHostPlace);
  for (int64_t token = 0; token < p.tokens; ++token) {
    for (int32_t head = 0; head < p.num_q_heads; ++head) {
      std::vector<float> x =
          floats(p.queries, p.dtype, token * p.query_stride + int64_t{head} * p.head_dim, p.head_dim);
      const int64_t row = token * p.num_q_heads + head;
      int8_t* const planes = p.planes + 2 * row * p.head_dim;
      p.units[row] = split(x, planes, planes + p.head_dim) / static_cast<float>(p.head_dim);
    }
  }
}

}  // namespace allot::kernels
