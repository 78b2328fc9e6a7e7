// Text that a peer sent, as it goes into the log, the history and the status.
#pragma once

#include <algorithm>
#include <string>

namespace allot::aggregator {

inline constexpr size_t kMaxNameBytes = 200;
inline constexpr size_t kMaxReasonBytes = 1000;

// `text` as one line of limited length. It is not cut within a UTF-8 character, because a message that quotes
// half a character could not be decoded.
inline std::string one_line(std::string text, size_t limit) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  if (text.size() > limit) {
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
    text.resize(limit);
  }
  return text;
}

// A name of a worker or a holder, which is shown as it is.
inline bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= kMaxNameBytes && text == one_line(text, kMaxNameBytes);
}

}  // namespace allot::aggregator
