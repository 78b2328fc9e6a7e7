// How a KV cache has its keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace allot::kernels {

enum class KeyFormat : uint8_t {
  kSixteenBits,  // in the numbers of values, which have 16 bits on a GPU
  kSplit,        // in two planes of 8 bits, the low one of which is read for the rows drawn (split_keys.h)
  kHighPlane,    // in the high one of these planes alone
};
std::string_view name(KeyFormat format);            // "16-bit", "split", "high"
KeyFormat parse_key_format(std::string_view text);  // throws InvalidArgument naming all
std::vector<std::string> key_format_names();

// What each name means, for the help of an option.
inline constexpr const char* kKeyFormatsHelp =
    "16-bit, split (two planes of 8 bits, the low one read for the rows drawn), high (one plane)";

}  // namespace allot::kernels
