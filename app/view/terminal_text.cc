#include "app/view/terminal_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>

namespace allot::app {
namespace {

constexpr std::string_view kUpright[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kLying[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

}  // namespace

std::string fitted(std::string_view text, size_t columns) {
  struct Cell {
    std::string_view bytes;
    size_t width;
  };
  std::vector<Cell> cells;
  size_t total = 0;
  while (!text.empty()) {
    utf8proc_int32_t code = -1;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                         static_cast<utf8proc_ssize_t>(text.size()), &code);
    const auto category = length > 0 ? utf8proc_category(code) : UTF8PROC_CATEGORY_CC;
    const bool shown = category != UTF8PROC_CATEGORY_CC && category != UTF8PROC_CATEGORY_CF;
    const size_t taken = length > 0 ? static_cast<size_t>(length) : 1;
    cells.push_back(
        shown ? Cell{text.substr(0, taken), static_cast<size_t>(std::max(0, utf8proc_charwidth(code)))}
              : Cell{"?", 1});
    total += cells.back().width;
    text.remove_prefix(taken);
  }
  std::string line;
  size_t used = 0;
  for (const Cell& cell : cells) {
    if (total > columns && used + cell.width + 1 > columns) return columns == 0 ? "" : line + "…";
    line += cell.bytes;
    used += cell.width;
  }
  return line;
}

std::string bar(double share, size_t cells) {
  const auto eighths =
      static_cast<size_t>(std::llround(std::clamp(share, 0.0, 1.0) * static_cast<double>(8 * cells)));
  std::string text;
  for (size_t i = 0; i < eighths / 8; ++i) text += "█";
  return text + std::string(kLying[eighths % 8]);
}

std::string sparkline(const std::vector<double>& values, double low, double high, size_t columns) {
  std::string text;
  const size_t cells = std::min(columns, values.size());
  for (size_t cell = 0; cell < cells; ++cell) {
    const size_t from = cell * values.size() / cells, to = (cell + 1) * values.size() / cells;
    double sum = 0;
    for (size_t i = from; i < to; ++i) sum += values[i];
    const double share = high > low ? (sum / static_cast<double>(to - from) - low) / (high - low) : 0.5;
    text += kUpright[static_cast<size_t>(std::clamp(share * 8, 0.0, 7.0))];
  }
  return text;
}

}  // namespace allot::app
