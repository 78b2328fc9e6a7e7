// How every benchmark prints what it measured: a table for people, one JSON object a line for programs.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace allot::bench {

// A text, a number, or nothing: a number that is missing or not finite.
class Cell {
 public:
  Cell(std::string text) : value_(std::move(text)) {}
  Cell(std::string_view text) : value_(std::string(text)) {}
  Cell(const char* text) : value_(std::string(text)) {}
  Cell(std::floating_point auto number) {
    if (std::isfinite(number)) value_ = static_cast<double>(number);
  }
  Cell(std::integral auto number) : value_(static_cast<double>(number)) {}
  Cell(const std::optional<double>& number) {
    if (number && std::isfinite(*number)) value_ = *number;
  }

  // The text; the number with `decimals`; "-" for nothing.
  std::string text(int decimals) const;

 private:
  std::variant<std::monostate, std::string, double> value_;
};

struct Column {
  std::string title;
  int width = 0;  // of the column with the gap before it; negative: left-aligned, the gap behind it
  int decimals = 0;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // The line of titles, and a line of the table; both end with a line break. `cells` are as many as there are
  // columns, or fewer, then the line ends early. Throws std::logic_error for more.
  std::string head() const;
  std::string line(const std::vector<Cell>& cells) const;

 private:
  std::vector<Column> columns_;
};

// "19.5..21.2".
std::string span_text(double low, double high, int decimals);

// A value of a JSON row: null for a number that is missing or not finite, which JSON does not know.
nlohmann::ordered_json json_number(const std::optional<double>& number);
// The object on one line, with a line break. Bytes that are no UTF-8 are replaced.
std::string json_line(const nlohmann::ordered_json& row);

}  // namespace allot::bench
