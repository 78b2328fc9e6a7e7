#include "bench/output.h"

#include <spdlog/fmt/fmt.h>

#include <cstdlib>
#include <stdexcept>

#include "base/json.h"

namespace allot::bench {
namespace {

void append(const Column& column, const std::string& text, std::string* line) {
  *line += column.width < 0 ? fmt::format("{:<{}}", text, -column.width)
                            : fmt::format("{:>{}}", text, column.width);
}

// Without the spaces that fill up the last column.
std::string ended(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::string Cell::text(int decimals) const {
  if (const auto* text = std::get_if<std::string>(&value_)) return *text;
  if (const auto* number = std::get_if<double>(&value_)) return fmt::format("{:.{}f}", *number, decimals);
  return "-";
}

std::string Table::head() const {
  std::string line;
  for (const Column& column : columns_) append(column, column.title, &line);
  return ended(std::move(line));
}

std::string Table::line(const std::vector<Cell>& cells) const {
  if (cells.size() > columns_.size())
    throw std::logic_error(
        fmt::format("a line of {} cells for a table of {} columns", cells.size(), columns_.size()));
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) append(columns_[i], cells[i].text(columns_[i].decimals), &line);
  return ended(std::move(line));
}

std::string span_text(double low, double high, int decimals) {
  return fmt::format("{:.{}f}..{:.{}f}", low, decimals, high, decimals);
}

nlohmann::ordered_json json_number(const std::optional<double>& number) {
  return number && std::isfinite(*number) ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

std::string json_line(const nlohmann::ordered_json& row) {
  return row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace allot::bench
