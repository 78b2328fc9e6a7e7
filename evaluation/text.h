// Views of parts of a text, for finding answers in replies.
#pragma once

#include <string_view>

#include "base/ascii.h"

namespace allot::evaluation {

// The last line that holds more than white space, trimmed; empty when there is none.
constexpr std::string_view last_line(std::string_view text) {
  text = trim(text);
  return trim(text.substr(text.find_last_of('\n') + 1));
}

}  // namespace allot::evaluation
