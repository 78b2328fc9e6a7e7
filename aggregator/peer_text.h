// Text that a peer sent, as it goes into the log, the history and the status.
#pragma once

#include <algorithm>
#include <string>

namespace allot::aggregator {

inline constexpr size_t kMaxNameBytes = 200;
inline constexpr size_t kMaxReasonBytes = 1000;

// One line, not too long.
inline std::string one_line(std::string text, size_t limit) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  if (text.size() > limit) text.resize(limit);
  return text;
}

}  // namespace allot::aggregator
