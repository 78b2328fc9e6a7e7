#include "kernels/key_format.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace allot::kernels {
namespace {

constexpr std::string_view kKeyFormats[] = {"16-bit", "split", "high"};

}  // namespace

std::string_view name(KeyFormat format) {
  return kKeyFormats[static_cast<size_t>(format)];
}

KeyFormat parse_key_format(std::string_view text) {
  const auto* const format = std::ranges::find(kKeyFormats, text);
  if (format == std::end(kKeyFormats))
    throw InvalidArgument(
        fmt::format("\"{}\" is no format of keys; known are {}", text, fmt::join(kKeyFormats, ", ")));
  return static_cast<KeyFormat>(format - std::begin(kKeyFormats));
}

std::vector<std::string> key_format_names() {
  return {std::begin(kKeyFormats), std::end(kKeyFormats)};
}

}  // namespace allot::kernels
