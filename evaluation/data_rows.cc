#include "evaluation/data_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/json_fields.h"
#include "model/utf8.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kParquetMark = "PAR1";
constexpr size_t kNamesShown = 12;  // of the fields that a file has

std::string line_of(const std::filesystem::path& file, uint32_t line) {
  return fmt::format("{}: line {}", file.string(), line);
}

std::vector<std::string> names_of(std::span<const DataField> fields) {
  std::vector<std::string> names;
  for (const DataField& field : fields) names.push_back(field.name);
  return names;
}

// `fields_there` are those of the file.
[[noreturn]] void fail_without(const std::string& field, const std::vector<std::string>& fields_there,
                               const std::string& where) {
  const size_t shown = std::min(fields_there.size(), kNamesShown);
  throw CorruptFile(fmt::format(
      "{}: no field \"{}\"; there {} {}{}; --question-field and --answer-field name the fields of "
      "question and answer",
      where, field, fields_there.size() == 1 ? "is" : "are",
      fields_there.empty()
          ? std::string("none")
          : fmt::format("\"{}\"",
                        fmt::join(fields_there.begin(),
                                  fields_there.begin() + static_cast<std::ptrdiff_t>(shown), "\", \"")),
      fields_there.size() > shown ? ", …" : ""));
}

std::string extension_of(const std::filesystem::path& file) {
  return to_lower(file.extension().string());
}

[[noreturn]] void fail_on_parquet(const std::filesystem::path& file) {
  std::filesystem::path lines = file;
  lines.replace_extension(".jsonl");
  throw UsageError(fmt::format(
      "{} is a Parquet file, which allot does not read, for Debian 12 has no package of Apache Arrow; make "
      "JSON lines of it: python3 -c \"import pandas; pandas.read_parquet('{}').to_json('{}', orient='records', "
      "lines=True)\"",
      file.string(), file.string(), lines.string()));
}

std::string json_value(const Json& row, const DataField& field, const std::string& where) {
  const auto found = row.find(field.name);
  const auto empty = [](const Json& value) {
    return value.is_null() || (value.is_string() && trim(value.get_ref<const std::string&>()).empty());
  };
  if (field.optional && (found == row.end() || empty(*found))) return {};
  if (found == row.end()) {
    std::vector<std::string> there;
    for (const auto& [name, value] : row.items()) there.push_back(name);
    fail_without(field.name, there, where);
  }
  if (field.list) {
    if (const auto lines = joined_lines(*found, field.number)) return *lines;
  }
  if (field.number && found->is_number()) return found->dump();
  if (!found->is_string() || trim(found->get_ref<const std::string&>()).empty()) {
    throw CorruptFile(fmt::format("{}: field \"{}\" is {}, expected a {}text that is not empty", where,
                                  field.name, shown(*found),
                                  field.list     ? "list of texts, or a number or a "
                                  : field.number ? "number or a "
                                                 : ""));
  }
  return found->get<std::string>();
}

DataRow json_row(const std::filesystem::path& file, const Json& object, DataRow row,
                 std::span<const DataField> fields) {
  const std::string where = place(file, row);
  if (!object.is_object()) {
    throw CorruptFile(
        fmt::format("{}: not a JSON object; {} is {{\"{}\": …}}{}", where,
                    row.listed ? "an entry of the list" : "a line", fmt::join(names_of(fields), "\": …, \""),
                    row.line == 1 && !row.listed ? ", or the file is CSV and its name ends in .csv" : ""));
  }
  for (const DataField& field : fields) row.values.push_back(json_value(object, field, where));
  return row;
}

std::vector<DataRow> listed_rows(const std::filesystem::path& file, std::string_view text,
                                 std::span<const DataField> fields) {
  std::vector<DataRow> rows;
  // Entries are taken as they are parsed, and dropped: long contexts are in memory once.
  const auto take = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth != 1 || (event != Event::object_end && event != Event::array_end && event != Event::value))
      return true;
    rows.push_back(json_row(file, parsed,
                            {.line = static_cast<uint32_t>(rows.size() + 1), .values = {}, .listed = true},
                            fields));
    return false;
  };
  try {
    const Json emptied = Json::parse(text, take);
  } catch (const Json::parse_error& error) {
    throw CorruptFile(
        fmt::format("{}: not JSON at byte {}, behind {} objects of the list; expected [{{\"{}\": "
                    "…}}, …]",
                    file.string(), error.byte, rows.size(), fmt::join(names_of(fields), "\": …, \"")));
  }
  return rows;
}

std::vector<DataRow> json_rows(const std::filesystem::path& file, std::string_view rest,
                               std::span<const DataField> fields) {
  if (trim(rest).starts_with('[')) return listed_rows(file, rest, fields);
  std::vector<DataRow> rows;
  while (!trim(rest).empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    rows.push_back(json_row(file, Json::parse(rest.substr(0, end), nullptr, /*allow_exceptions=*/false),
                            {.line = static_cast<uint32_t>(rows.size() + 1), .values = {}}, fields));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return rows;
}

// Records of CSV, RFC 4180. Written here because messages must name the line and the field of a fault.
class CsvRecords {
 public:
  struct Record {
    uint32_t line = 0;  // on which it begins
    std::vector<std::string> fields;
  };

  CsvRecords(const std::filesystem::path& file, std::string_view text) : file_(file), rest_(text) {}

  // Nothing at the end of the file, or when only empty lines follow.
  std::optional<Record> next() {
    if (trim(rest_).empty()) return std::nullopt;
    Record record{.line = line_, .fields = {}};
    do {
      record.fields.push_back(rest_.starts_with('"') ? quoted(record) : plain(record));
    } while (take(","));
    if (!take("\r\n")) take("\n");
    ++line_;
    return record;
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool at_end_of_field() const {
    return rest_.empty() || rest_.front() == ',' || rest_.front() == '\n' || rest_.starts_with("\r\n");
  }

  [[noreturn]] void fail(uint32_t line, const Record& record, const char* fault) const {
    throw CorruptFile(
        fmt::format("{}: field {} of the line {}", line_of(file_, line), record.fields.size() + 1, fault));
  }

  std::string plain(const Record& record) {
    const char* begin = rest_.data();
    while (!at_end_of_field()) {
      if (rest_.front() == '"') {
        fail(line_, record,
             "has a quote but does not begin with one; put quotes around the field and double those in it");
      }
      rest_.remove_prefix(1);
    }
    return {begin, rest_.data()};
  }

  std::string quoted(const Record& record) {
    const uint32_t begin = line_;
    std::string text;
    rest_.remove_prefix(1);
    while (true) {
      if (rest_.empty()) fail(begin, record, "begins with a quote and has no closing one");
      if (rest_.front() == '"') {
        rest_.remove_prefix(1);
        if (at_end_of_field()) return text;
        if (rest_.front() != '"')
          fail(line_, record, "goes on behind its closing quote; a quote in a field is written twice");
      }
      if (rest_.front() == '\n') ++line_;
      text += rest_.front();
      rest_.remove_prefix(1);
    }
  }

  const std::filesystem::path& file_;
  std::string_view rest_;
  uint32_t line_ = 1;
};

// Which of the header's fields has the name.
size_t column_of(const std::string& name, const CsvRecords::Record& header,
                 const std::filesystem::path& file) {
  const auto& names = header.fields;
  const auto found = std::ranges::find(names, name);
  const std::string where = line_of(file, header.line) + ", the header";
  if (found == names.end()) {
    if (names.size() == 1 && names.front().find_first_of(";\t") != std::string::npos)
      throw CorruptFile(where + " has no comma; fields of CSV are separated by commas");
    fail_without(name, names, where);
  }
  if (std::ranges::count(names, name) > 1)
    throw CorruptFile(fmt::format("{} names field \"{}\" twice; name one of them otherwise", where, name));
  return static_cast<size_t>(found - names.begin());
}

bool is_optional(const std::string& name, std::span<const DataField> fields) {
  return std::ranges::any_of(fields,
                             [&](const DataField& field) { return field.name == name && field.optional; });
}

std::vector<DataRow> csv_rows(const std::filesystem::path& file, std::string_view text,
                              std::span<const DataField> fields, std::span<const std::string> named) {
  CsvRecords records(file, text);
  std::optional<CsvRecords::Record> header =
      CsvRecords::Record{.line = 0, .fields = {named.begin(), named.end()}};
  if (named.empty()) header = records.next();
  if (!header) return {};
  constexpr size_t kNoColumn = std::string::npos;
  std::vector<size_t> columns;
  for (const DataField& field : fields) {
    const bool there = std::ranges::find(header->fields, field.name) != header->fields.end();
    columns.push_back(field.optional && !there ? kNoColumn : column_of(field.name, *header, file));
  }
  size_t fewest = header->fields.size();
  while (!named.empty() && fewest > 0 && is_optional(header->fields[fewest - 1], fields)) --fewest;
  std::vector<DataRow> rows;
  while (const auto record = records.next()) {
    DataRow row{.line = record->line, .values = {}};
    const std::string where = place(file, row);
    const size_t found = record->fields.size();
    if (found < fewest || found > header->fields.size()) {
      throw CorruptFile(fmt::format(
          "{}: {} field{}, but {} names {}; a field with a comma, a quote or a line break "
          "stands in quotes",
          where, found, found == 1 ? "" : "s", named.empty() ? "the header" : "'columns' of the task",
          fewest == header->fields.size() ? fmt::format("{}", fewest)
                                          : fmt::format("{} to {}", fewest, header->fields.size())));
    }
    for (size_t i = 0; i < fields.size(); ++i) {
      const std::string value = columns[i] < found ? record->fields[columns[i]] : std::string();
      if (trim(value).empty() && !fields[i].optional)
        throw CorruptFile(fmt::format("{}: field \"{}\" is empty, expected a text", where, fields[i].name));
      if (model::find_invalid_utf8(value))
        throw CorruptFile(
            fmt::format("{}: field \"{}\" is not UTF-8; save the file as UTF-8", where, fields[i].name));
      row.values.push_back(value);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

DataRows read_rows(const std::filesystem::path& file, std::span<const DataField> fields,
                   std::span<const std::string> columns) {
  const std::string extension = extension_of(file);
  const std::string content = read_file(file);
  std::string_view text = content;
  if (extension == ".parquet" || text.starts_with(kParquetMark)) fail_on_parquet(file);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  DataRows data{
      .sha256 = sha256_hex(content),
      .rows = extension == ".csv" ? csv_rows(file, text, fields, columns) : json_rows(file, text, fields)};
  if (data.rows.empty()) {
    throw CorruptFile(
        fmt::format("{}: holds no questions; expected {} with \"{}\"", file.string(),
                    extension == ".csv" ? "CSV with a header line, and rows" : "JSON lines or a list",
                    fmt::join(names_of(fields), "\", \"")));
  }
  return data;
}

std::string place(const std::filesystem::path& file, const DataRow& row) {
  return row.listed ? fmt::format("{}: object {}", file.string(), row.line) : line_of(file, row.line);
}

void check(const FieldNames& names) {
  if (names.question.empty() || names.answer.empty())
    throw UsageError("--question-field and --answer-field are names of fields, and one of them is empty");
  if (names.question == names.answer) {
    throw UsageError(
        fmt::format("--question-field and --answer-field are both {}; a row's question and answer "
                    "are two fields",
                    names.question));
  }
}

}  // namespace allot::evaluation
