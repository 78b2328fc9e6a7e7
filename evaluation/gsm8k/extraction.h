// Finding the final answer in a reply, one way per prompt style (S2ANTA paper, Tables 21 and 23). README.md
// in this folder says exactly what each looks for and why.
#pragma once

#include <optional>
#include <string_view>

namespace allot::evaluation::gsm8k {

inline constexpr size_t kTailBytes = 200;  // Table 21: "final ~200 characters"
inline constexpr size_t kTailTokens = 25;  // Table 23: "final 25 whitespace-separated tokens"
inline constexpr std::string_view kMarker = "####";

// Each returns a view into `reply`, which the caller grades, or nothing. Linear in the reply's length,
// for any bytes.

// The last \boxed{…}; without one, what the end of the reply states as its answer.
std::optional<std::string_view> boxed_answer(std::string_view reply);
// The first number of the last non-empty line; without one, of the final 25 words.
std::optional<std::string_view> last_line_answer(std::string_view reply);
// What follows the first "####", up to the line's end.
std::optional<std::string_view> marked_answer(std::string_view reply);

}  // namespace allot::evaluation::gsm8k
