// Reads data files: rows of fields, as JSON lines, a JSON list or CSV. Tasks choose the fields and make
// questions of them. docs/tasks.md describes the forms. Not for Parquet: see read_rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace allot::evaluation {

// The fields of a data file's rows in which question and answer stand.
struct FieldNames {
  std::string question = "question";
  std::string answer = "answer";
  friend bool operator==(const FieldNames&, const FieldNames&) = default;
};

// A field that every row must have, with a text that is not empty.
struct DataField {
  std::string name;
  bool number = false;  // or a JSON number, whose shortest form is its text
  bool list = false;    // or a JSON list of these, whose text has a line for each
  bool optional =
      false;  // or nothing: a row may lack it, or have an empty text or null, and its text is empty
};

struct DataRow {
  uint32_t line = 0;                // on which it begins, from 1; of a list the number of its object
  std::vector<std::string> values;  // of the fields asked for, in their order
  bool listed = false;              // it is an object of a JSON list
};

struct DataRows {
  std::string sha256;  // of the file
  std::vector<DataRow> rows;
};

// Reads `file` whole: CSV as in RFC 4180, with a header line, where its name ends in .csv; else a JSON list
// of objects where it begins with a bracket, or a JSON object a line. Text is UTF-8; a byte order mark in
// front and CR before LF are allowed. Fields that are not asked for may hold anything. Where `columns` names
// any, CSV has no header line and these columns, of which a record may lack the last ones that are asked for
// as optional. Throws NotFound; CorruptFile naming file, line and field, also for a file without rows; and
// UsageError for Parquet, which allot does not read (Debian 12 has no package of Apache Arrow), with the
// command that converts it.
DataRows read_rows(const std::filesystem::path& file, std::span<const DataField> fields,
                   std::span<const std::string> columns = {});

// "questions.csv: line 3" or "questions.json: object 3", for messages about a row's values.
std::string place(const std::filesystem::path& file, const DataRow& row);

// Throws UsageError when a name is empty or both are the same.
void check(const FieldNames& names);

}  // namespace allot::evaluation
