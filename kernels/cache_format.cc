#include "kernels/cache_format.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/split_keys.h"

namespace allot::kernels {
namespace {

constexpr std::string_view kCacheFormats[] = {"dtype", "bfloat16",   "split", "high",
                                              "fp8",   "fp8-scaled", "int8"};
constexpr int64_t kScaleBytes = 4;

}  // namespace

std::string_view name(CacheFormat format) {
  return kCacheFormats[static_cast<size_t>(format)];
}

CacheFormat parse_cache_format(std::string_view text) {
  const auto* const format = std::ranges::find(kCacheFormats, text);
  if (format == std::end(kCacheFormats))
    throw InvalidArgument(
        fmt::format("\"{}\" is no format of a cache; known are {}", text, fmt::join(kCacheFormats, ", ")));
  return static_cast<CacheFormat>(format - std::begin(kCacheFormats));
}

std::vector<std::string> cache_format_names() {
  return {std::begin(kCacheFormats), std::end(kCacheFormats)};
}

CacheFormat cache_format(KeyFormat keys) {
  switch (keys) {
    case KeyFormat::kSixteenBits:
      return CacheFormat::kDtype;
    case KeyFormat::kSplit:
      return CacheFormat::kSplit;
    case KeyFormat::kHighPlane:
      break;
  }
  return CacheFormat::kHighPlane;
}

int64_t row_bytes(CacheFormat format, int32_t head_dim, int64_t bytes_per_element) {
  const int64_t elements = head_dim;
  switch (format) {
    case CacheFormat::kDtype:
      return elements * bytes_per_element;
    case CacheFormat::kBFloat16:
      return 2 * elements;
    case CacheFormat::kSplit:
      return split_block_content(head_dim) / kSplitBlockKeys + elements;
    case CacheFormat::kHighPlane:
      return split_block_content(head_dim) / kSplitBlockKeys;
    case CacheFormat::kFp8:
      return elements;
    case CacheFormat::kFp8Scaled:
    case CacheFormat::kInt8:
      break;
  }
  return elements + kScaleBytes;
}

std::string name(const CacheFormats& formats) {
  return fmt::format("{}/{}", name(formats.keys), name(formats.values));
}

CacheFormats parse_cache_formats(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {.keys = parse_cache_format(text)};
  return {.keys = parse_cache_format(text.substr(0, slash)),
          .values = parse_cache_format(text.substr(slash + 1))};
}

}  // namespace allot::kernels
