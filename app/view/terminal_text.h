// Text for a terminal: cut to its width, bars and small charts out of block characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace allot::app {

// The text cut to at most `columns` columns of a terminal, with an ellipsis where something is missing, and
// free of anything that would move the cursor: what others sent is shown, not obeyed.
std::string fitted(std::string_view text, size_t columns);

// A bar of `share` (0 to 1) of `cells` characters, in eighths of a character, without the empty rest.
std::string bar(double share, size_t cells);

// The values from left to right as characters of rising height between `low` and `high`; values that share a
// column are averaged. Halfway up where `low` equals `high`.
std::string sparkline(const std::vector<double>& values, double low, double high, size_t columns);

}  // namespace allot::app
