// How a KV cache may keep a row, the key or value of a token in one KV head: names and bytes. An engine's own
// formats are its dtype and those of key_format.h; the others are for comparison (cache_rounding.h,
// evaluation/decode_bytes.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/key_format.h"

namespace allot::kernels {

enum class CacheFormat : uint8_t {
  kDtype,      // the engine's numbers
  kBFloat16,   // of an engine of float32
  kSplit,      // as KeyFormat::kSplit
  kHighPlane,  // as KeyFormat::kHighPlane: rotated, whole numbers of 8 bits times a unit for each row
  kFp8,        // e4m3 (fp8.h) without a scale: vLLM's fp8 cache where no scales are given
  kFp8Scaled,  // e4m3 with a float32 scale for each row, by its largest magnitude
  kInt8,       // whole numbers of 8 bits with such a scale, not rotated
};
std::string_view name(
    CacheFormat format);  // "dtype", "bfloat16", "split", "high", "fp8", "fp8-scaled", "int8"
CacheFormat parse_cache_format(std::string_view text);  // throws InvalidArgument naming all
std::vector<std::string> cache_format_names();

// Whether rows are rotated and split, of which not every size can be (can_split).
constexpr bool splits(CacheFormat format) {
  return format == CacheFormat::kSplit || format == CacheFormat::kHighPlane;
}

// That in which an engine with these keys has them.
CacheFormat cache_format(KeyFormat keys);

// Bytes that are read of a row, its unit or scale included, where the engine's numbers have
// `bytes_per_element`.
int64_t row_bytes(CacheFormat format, int32_t head_dim, int64_t bytes_per_element);

// What keys and values are rounded to.
struct CacheFormats {
  CacheFormat keys = CacheFormat::kDtype;
  CacheFormat values = CacheFormat::kDtype;

  bool any() const { return keys != CacheFormat::kDtype || values != CacheFormat::kDtype; }
  friend bool operator==(const CacheFormats&, const CacheFormats&) = default;
};
// "fp8/int8": of the keys, then of the values.
std::string name(const CacheFormats& formats);
// The inverse; "split" alone has values of the dtype. Throws InvalidArgument as parse_cache_format does, and
// for more than two names.
CacheFormats parse_cache_formats(std::string_view text);

}  // namespace allot::kernels
