// LaTeX that surrounds an answer, reduced to plain text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace allot::evaluation::gsm8k {

// Stands for "\,": a thousands separator between digits and a space elsewhere.
inline constexpr char kThinSpace = '\x01';

// `text` without math delimiters, Markdown emphasis, spacing commands and font commands (whose argument
// stays, separated by spaces). "\$" and "\%" lose their backslash, "{,}" its braces, dfrac and tfrac become
// frac; U+2212 becomes "-", no-break spaces become spaces. Other commands stay as they are. Linear in the
// length of `text`.
std::string plain_text(std::string_view text);

// Content of the last \boxed{…} (the one that starts last) whose braces balance; braces may nest to any depth
// and escaped braces (\{ and \}) do not count. Nothing when there is none. Linear in the length of `text`.
std::optional<std::string_view> last_boxed(std::string_view text);

}  // namespace allot::evaluation::gsm8k
