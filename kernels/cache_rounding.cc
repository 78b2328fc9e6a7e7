#include "kernels/cache_rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/bfloat16.h"
#include "kernels/element.h"
#include "kernels/fp8.h"
#include "kernels/hadamard.h"
#include "kernels/row_checks.h"
#include "kernels/split_keys.h"

namespace allot::kernels {
namespace {

float largest_of(std::span<const float> row) {
  float largest = 0;
  for (const float x : row) largest = larger_magnitude(largest, x);
  return largest;
}

void round_to_fp8(std::span<float> row, const Fp8Scale& scale) {
  for (float& x : row) x = float_from_e4m3(e4m3_from_float(x * scale.inverse)) * scale.scale;
}

// Of a row of zeros, or of numbers so small that their reciprocal is infinite, nothing is left.
void round_to_int8(std::span<float> row) {
  constexpr float kMost = 127;
  const float largest = largest_of(row);
  const bool finite = largest <= 3.0e38f;
  const float unit = finite ? largest / kMost : NAN;
  const float inverse = finite && largest >= kLeastFp8Range ? kMost / largest : 0;
  for (float& x : row) x = std::nearbyint(x * inverse) * unit;
}

// What both planes of a split key leave of it, or the high one alone, as restore_split_keys_cuda does before
// it rounds to the dtype: the rotation is undone on whole numbers, whose sums are below 2^24, so that the
// product with the unit is the only rounding.
void round_to_planes(std::span<float> row, CacheFormat format) {
  const auto size = static_cast<int32_t>(row.size());
  std::vector<char> block(static_cast<size_t>(split_block_bytes(size)));
  std::vector<int8_t> low(row.size() * kSplitBlockKeys);
  const int64_t slot = 0;
  store_split_keys({.tokens = 1,
                    .num_kv_heads = 1,
                    .head_dim = size,
                    .keys = row.data(),
                    .key_stride = size,
                    .high = block.data(),
                    .low = low.data(),
                    .num_pages = 1,
                    .page_size = kSplitBlockKeys,
                    .slots = &slot});
  float unit = 0;
  std::memcpy(&unit, block.data() + split_unit_offset(size, 0), sizeof unit);
  std::vector<int32_t> fixed(row.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto high = static_cast<int8_t>(block[static_cast<size_t>(split_high_offset(size, 0, i))]);
    fixed[i] = 256 * high + (format == CacheFormat::kSplit ? low[i] : 0);
  }
  hadamard(std::span(fixed));
  const float factor = unit / (256.0f * static_cast<float>(size));
  for (int32_t i = 0; i < size; ++i) {
    const float x = static_cast<float>(fixed[i]) * factor;
    row[i] = rotation_negates(i) ? -x : x;
  }
}

void check(const RoundCacheParams& p) {
  const RowCheck check("round_cache", kHostPlace);
  check.rows("tokens", p.tokens);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check.size("head_dim", p.head_dim, 1);
  check.size("page_size", p.page_size, 1);
  if (p.dtype == DType::kFloat16) check.refuse("dtype is float16; expected float32 or bfloat16");
  for (const CacheFormat format : {p.formats.keys, p.formats.values}) {
    if (splits(format) && !can_split(p.head_dim))
      check.refuse("head_dim is {}; format {} is for powers of two from 8 to 256", p.head_dim, name(format));
  }
  if (p.tokens == 0) return;
  check.pointers({{"key_pages", p.key_pages},
                  {"value_pages", p.value_pages},
                  {"value_norms", p.value_norms},
                  {"slots", p.slots}});
  const int64_t slots = p.num_pages * p.page_size;
  for (int64_t token = 0; token < p.tokens; ++token) {
    if (p.slots[token] < 0 || p.slots[token] >= slots)
      check.refuse("token {} has cache slot {}; the {} pages of {} tokens have slots 0 to {}", token,
                   p.slots[token], p.num_pages, p.page_size, slots - 1);
  }
}

// Rounds row number `index` of the pages, in `row` as a place for its numbers.
void round_stored_row(void* pages, DType dtype, int64_t index, CacheFormat format, std::span<float> row) {
  const int64_t first = index * static_cast<int64_t>(row.size());
  for (size_t i = 0; i < row.size(); ++i) row[i] = element(pages, dtype, first + static_cast<int64_t>(i));
  round_row(row, format);
  if (dtype == DType::kFloat32) {
    std::ranges::copy(row, static_cast<float*>(pages) + first);
    return;
  }
  auto* const bits = static_cast<uint16_t*>(pages) + first;
  std::ranges::transform(row, bits, bfloat16_from_float);
  std::transform(bits, bits + row.size(), row.begin(), float_from_bfloat16);
}

}  // namespace

void round_row(std::span<float> row, CacheFormat format) {
  switch (format) {
    case CacheFormat::kDtype:
      return;
    case CacheFormat::kBFloat16:
      for (float& x : row) x = float_from_bfloat16(bfloat16_from_float(x));
      return;
    case CacheFormat::kSplit:
    case CacheFormat::kHighPlane:
      return round_to_planes(row, format);
    case CacheFormat::kFp8:
      return round_to_fp8(row, {.scale = 1, .inverse = 1});
    case CacheFormat::kFp8Scaled:
      return round_to_fp8(row, fp8_scale(largest_of(row)));
    case CacheFormat::kInt8:
      return round_to_int8(row);
  }
}

void round_cache(const RoundCacheParams& p) {
  check(p);
  std::vector<float> row(static_cast<size_t>(p.head_dim));
  for (int64_t token = 0; token < p.tokens; ++token) {
    const int64_t page = p.slots[token] / p.page_size, offset = p.slots[token] % p.page_size;
    for (int32_t head = 0; head < p.num_kv_heads; ++head) {
      const int64_t index = (page * p.num_kv_heads + head) * p.page_size + offset;
      if (p.formats.keys != CacheFormat::kDtype)
        round_stored_row(p.key_pages, p.dtype, index, p.formats.keys, row);
      if (p.formats.values == CacheFormat::kDtype) continue;
      round_stored_row(p.value_pages, p.dtype, index, p.formats.values, row);
      float squares = 0;
      for (const float x : row) squares += x * x;
      p.value_norms[index] = std::sqrt(squares);
    }
  }
}

}  // namespace allot::kernels
