#include "aggregator/history_export.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "aggregator/history_format.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::aggregator {
namespace {

struct Exported {
  const char* table;
  const char* query;
};

constexpr std::array kExported{
    Exported{"episodes", "SELECT * FROM episodes ORDER BY seq"},
    Exported{
        "outcomes",
        "SELECT *, CASE WHEN score IS NULL THEN length(replace(correct, '0', '')) * 1.0 / length(correct) "
        "ELSE (SELECT avg(value) FROM json_each('[' || score || ']')) END AS reward "
        "FROM outcomes ORDER BY seq"},
    Exported{"leases", "SELECT * FROM leases ORDER BY lease"},
    Exported{"lease_ends", "SELECT * FROM lease_ends ORDER BY seq"},
    Exported{"kept_answers", "SELECT * FROM kept_answers ORDER BY seq"},
    Exported{"set_asides", "SELECT * FROM set_asides ORDER BY seq"},
    Exported{"versions", "SELECT * FROM versions ORDER BY version"},
    Exported{"steering", "SELECT * FROM steering ORDER BY seq"},
    Exported{"epochs", "SELECT * FROM epochs ORDER BY epoch"},
    Exported{"counters", "SELECT * FROM counters ORDER BY name"},
};

// For a history before version 3, whose scores are all 0 or 1.
constexpr const char* kOutcomesBefore3 =
    "SELECT *, length(replace(correct, '0', '')) * 1.0 / length(correct) AS reward FROM outcomes "
    "ORDER BY seq";

// Columns whose text is a list of numbers, which is JSON except for the missing brackets.
bool is_list(std::string_view column) {
  constexpr std::array<std::string_view, 7> kLists{"samples", "questions",   "prompt_tokens", "output_tokens",
                                                   "shares",  "recommended", "score"};
  return std::ranges::find(kLists, column) != kLists.end();
}

std::string json_value(const Statement& row, int column) {
  switch (row.type(column)) {
    case SQLITE_INTEGER:
      return std::to_string(row.integer(column));
    case SQLITE_FLOAT:
      return nlohmann::json(row.real(column)).dump();
    case SQLITE_NULL:
      return "null";
    default:
      break;
  }
  const std::string text(row.text(column));
  if (is_list(row.name(column))) return "[" + text + "]";
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string csv_text(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string csv_value(const Statement& row, int column) {
  // Numbers in the shortest form that reads back to the same bits.
  if (row.type(column) == SQLITE_FLOAT) return fmt::format("{}", row.real(column));
  return csv_text(row.text(column));
}

void write_json_row(const Statement& row, std::ostream& out) {
  for (int column = 0; column < row.columns(); ++column) {
    out << (column == 0 ? "{\"" : ",\"") << row.name(column) << "\":" << json_value(row, column);
  }
  out << "}\n";
}

void write_csv_row(const Statement& row, std::ostream& out) {
  for (int column = 0; column < row.columns(); ++column) {
    out << (column == 0 ? "" : ",") << csv_value(row, column);
  }
  out << "\r\n";
}

void write_csv_names(const Statement& row, std::ostream& out) {
  for (int column = 0; column < row.columns(); ++column) out << (column == 0 ? "" : ",") << row.name(column);
  out << "\r\n";
}

}  // namespace

std::vector<std::string> exported_tables() {
  std::vector<std::string> names;
  for (const Exported& one : kExported) names.emplace_back(one.table);
  return names;
}

int64_t export_history(const std::filesystem::path& file, std::string_view table, ExportFormat format,
                       std::ostream& out) {
  const auto* exported = std::ranges::find(kExported, table, &Exported::table);
  if (exported == kExported.end()) {
    throw InvalidArgument(fmt::format("a history has no table '{}', expected one of {}", table,
                                      fmt::join(exported_tables(), ", ")));
  }
  if (!std::filesystem::exists(file)) throw NotFound(fmt::format("there is no history {}", file.string()));
  Database database(file, Database::Mode::kReadOnly);
  const Transaction snapshot(&database, "BEGIN");
  const int64_t version = check_schema_version(database);
  if (version < 2 && (table == "kept_answers" || table == "steering")) {
    throw InvalidArgument(fmt::format("history {} has schema version {}, which has no table {}",
                                      file.string(), version, table));
  }
  Statement rows(database, version < 3 && table == "outcomes" ? kOutcomesBefore3 : exported->query);
  if (format == ExportFormat::kCsv) write_csv_names(rows, out);
  int64_t count = 0;
  for (; rows.step(); ++count) {
    format == ExportFormat::kCsv ? write_csv_row(rows, out) : write_json_row(rows, out);
    if (!out) throw StorageError(fmt::format("writing row {} of {} failed; is the disk full?", count, table));
  }
  return count;
}

}  // namespace allot::aggregator
