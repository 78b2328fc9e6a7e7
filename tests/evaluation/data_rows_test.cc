#include "evaluation/data_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "evaluation/task.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::array kFields = {DataField{"q"}, DataField{"a", true}};

DataRows rows_of(const char* name, const std::string& content) {
  const TemporaryDirectory directory;
  write_file_atomically(directory.path() / name, content);
  return read_rows(directory.path() / name, kFields);
}

// What the rows hold, each field in brackets.
std::vector<std::string> texts(const char* name, const std::string& content) {
  std::vector<std::string> all;
  for (const DataRow& row : rows_of(name, content).rows) {
    std::string text;
    for (const std::string& value : row.values) text += "[" + value + "]";
    all.push_back(text);
  }
  return all;
}

template <class Error>
std::string refusal(const char* name, const std::string& content) {
  try {
    (void)rows_of(name, content);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string csv_fault(const std::string& content) {
  return refusal<CorruptFile>("data.csv", content);
}

std::string json_fault(const std::string& content) {
  return refusal<CorruptFile>("data.jsonl", content);
}

TEST(DataRows, CsvTakesTheNamedColumnsInTheOrderAskedFor) {
  EXPECT_THAT(texts("data.csv", "id,a,q\n1,x,y\n2,5,\"a, b\"\n"), ElementsAre("[y][x]", "[a, b][5]"));
  EXPECT_THAT(texts("DATA.CSV", "q,a\nx,y"), ElementsAre("[x][y]"));
}

TEST(DataRows, CsvKeepsDoubledQuotesAndLineBreaksOfQuotedFields) {
  const std::string text = "q,a\n\"Tom said \"\"hi\"\".\nHow\r\nmany?\",\"\"\"\"\nx,y\n";
  EXPECT_THAT(texts("data.csv", text), ElementsAre("[Tom said \"hi\".\nHow\r\nmany?][\"]", "[x][y]"));
  EXPECT_EQ(rows_of("data.csv", text).rows.back().line, 5u) << "the line of the file, not of the record";
}

TEST(DataRows, CsvMayHaveWindowsLineEndsAByteOrderMarkAndEmptyLinesAtTheEnd) {
  const std::string text = "\xEF\xBB\xBFq,a\r\nx,y\r\n\"z\",w\r\n\r\n\n";
  EXPECT_THAT(texts("data.csv", text), ElementsAre("[x][y]", "[z][w]"));
  EXPECT_EQ(rows_of("data.csv", text).sha256, sha256_hex(text));
}

TEST(DataRows, CsvFaultsAreNamedWithLineAndField) {
  EXPECT_THAT(csv_fault("id,text\n1,2\n"),
              Names("data.csv: line 1", "\"q\"", "\"id\", \"text\"", "--question-field"));
  EXPECT_THAT(csv_fault("q;a\n1;2\n"), Names("line 1", "comma"));
  EXPECT_THAT(csv_fault("q,a,q\n1,2,3\n"), Names("line 1", "\"q\"", "twice"));
  EXPECT_THAT(csv_fault("q,a\n1,2\n1,2,3\n"), Names("line 3", "3 fields", 2));
  EXPECT_THAT(csv_fault("q,a\n1,2\n\n3,4\n"), Names("line 3", "1 field,", 2));
  EXPECT_THAT(csv_fault("q,a\n\"1\n2\",\"never\nclosed,\n"), Names("line 3: field 2", "closing"));
  EXPECT_THAT(csv_fault("q,a\n1,a \"quote\"\n"), Names("line 2: field 2", "double"));
  EXPECT_THAT(csv_fault("q,a\n\"1\" ,2\n"), Names("line 2: field 1", "twice"));
  EXPECT_THAT(csv_fault("q,a,z\n1,2,\n3,\" \",\n"), Names("line 3", "\"a\"", "empty"));
  EXPECT_THAT(csv_fault("q,a\ncaf\xE9,2\n"), Names("line 2", "\"q\"", "UTF-8"));
}

TEST(DataRows, FilesWithoutRowsAreRefused) {
  EXPECT_THAT(csv_fault("q,a\n"), Names("no questions", "header", "\"q\", \"a\""));
  EXPECT_THAT(csv_fault(""), Names("no questions"));
  EXPECT_THAT(json_fault(" \n"), Names("no questions", "\"q\", \"a\""));
}

TEST(DataRows, JsonLinesTakeTextsAndNumbers) {
  const std::string text =
      "\xEF\xBB\xBF{\"q\": \"x\", \"a\": 1.50, \"other\": []}\r\n{\"a\": \"y\", \"q\": \"\\u00e9\"}";
  EXPECT_THAT(texts("data.jsonl", text), ElementsAre("[x][1.5]", "[\xC3\xA9][y]"));
}

TEST(DataRows, JsonFaultsAreNamedWithLineAndField) {
  const std::string good = "{\"q\": \"x\", \"a\": \"y\"}\n";
  EXPECT_THAT(json_fault(good + "{\"id\": 1, \"text\": 2}\n"),
              Names("data.jsonl: line 2", "\"q\"", "\"id\", \"text\"", "--question-field"));
  EXPECT_THAT(json_fault(good + "{\"q\": 7, \"a\": \"y\"}\n"),
              AllOf(Names("line 2", "\"q\"", 7), Not(HasSubstr("number"))));
  EXPECT_THAT(json_fault(good + "{\"q\": \"x\", \"a\": [1]}\n"), Names("line 2", "\"a\"", "[1]", "number"));
  EXPECT_THAT(json_fault(good + "{\"q\": \"\", \"a\": \"y\"}\n"), Names("line 2", "\"q\"", "empty"));
  EXPECT_THAT(json_fault("q,a\n1,2\n"), Names("line 1", "JSON object", ".csv"));
}

TEST(DataRows, ParquetIsRefusedWithTheCommandThatConvertsIt) {
  EXPECT_THAT(refusal<UsageError>("data.parquet", "any"),
              AllOf(Names("data.parquet", "Arrow", "python3"),
                    HasSubstr("data.jsonl', orient='records', lines=True)")));
  EXPECT_THAT(refusal<UsageError>("data.jsonl", "PAR1\x15\x04"), Names("Parquet"));
}

TEST(DataRows, NamesOfFieldsThatAreEmptyOrTheSameAreRefused) {
  EXPECT_NO_THROW(check(FieldNames()));
  EXPECT_THROW(check({.question = "", .answer = "a"}), UsageError);
  EXPECT_THROW(check({.question = "a", .answer = "a"}), UsageError);
}

// A file of questions as CSV and as JSON lines is the same questions to a task.
TEST(DataRows, TasksReadTheFieldsThatTheyAreTold) {
  const TemporaryDirectory directory;
  const auto task = make_task("gsm8k", PromptStyle::kPlain);
  const FieldNames names{.question = "problem", .answer = "solution"};
  write_file_atomically(directory.path() / "data.csv",
                        "solution,problem\n\"1,000 and 1\n#### 1,001\",Sum?\n");
  EXPECT_THROW((void)task->load(directory.path() / "data.csv"), CorruptFile);
  const Dataset data = task->load(directory.path() / "data.csv", names);
  EXPECT_EQ(data.fields, names);
  ASSERT_EQ(data.questions.size(), 1u);
  EXPECT_EQ(data.questions[0].id, 0u) << "the header is no row";
  EXPECT_EQ(data.questions[0].text, "Sum?");
  EXPECT_EQ(data.questions[0].answer, "1,001");
}

TEST(DataRows, AListOfTextsHasALineForEach) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "data.jsonl";
  const std::array fields = {DataField{.name = "a", .number = true, .list = true}};
  write_file_atomically(file, "{\"a\": [\"x y\", 7]}\n{\"a\": \"z\"}\n");
  const DataRows data = read_rows(file, fields);
  EXPECT_EQ(data.rows[0].values[0], "x y\n7");
  EXPECT_EQ(data.rows[1].values[0], "z");
  for (const char* bad : {"[]", "[\" \"]", "[[\"x\"]]", "[true]", "null"}) {
    write_file_atomically(file, std::string("{\"a\": ") + bad + "}");
    EXPECT_THROW((void)read_rows(file, fields), CorruptFile) << bad;
  }
  write_file_atomically(file, "{\"a\": [\"x\"]}");
  EXPECT_THROW((void)read_rows(file, std::array{DataField{.name = "a"}}), CorruptFile);
}

TEST(DataRows, CsvWithoutAHeaderHasTheColumnsThatAreNamed) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "data.csv";
  write_file_atomically(file, "1,\"a, b\",x\n2,c,y\n");
  const std::vector<std::string> columns = {"n", "q", "a"};
  const DataRows data = read_rows(file, kFields, columns);
  ASSERT_EQ(data.rows.size(), 2u);
  EXPECT_THAT(data.rows[0].values, ElementsAre("a, b", "x"));
  EXPECT_EQ(data.rows[0].line, 1u);
  write_file_atomically(file, "1,a\n");
  try {
    (void)read_rows(file, kFields, columns);
    FAIL();
  } catch (const CorruptFile& error) {
    EXPECT_THAT(error.what(), Names("line 1", 2, "columns", 3));
  }
}

TEST(DataRows, AJsonListIsARowForEachObject) {
  const std::string list =
      " [\n{\"q\": \"one\", \"a\": 1, \"other\": [{\"q\": 1}, null]}, {\"a\": \"b\", \"q\": \"two\"}\n]\n";
  for (const char* name : {"data.json", "data.jsonl"})
    EXPECT_THAT(texts(name, list), ElementsAre("[one][1]", "[two][b]"));
  EXPECT_THAT(texts("data.json", "\xEF\xBB\xBF" + list), ElementsAre("[one][1]", "[two][b]"));
  const DataRows data = rows_of("data.json", list);
  EXPECT_EQ(data.sha256, sha256_hex(list));
  EXPECT_THAT(place("data.json", data.rows[1]), Names("data.json", "object 2"));
  EXPECT_THAT(json_fault("[{\"q\": \"one\", \"a\": 1}, {\"q\": \"two\"}]"), Names("object 2", "\"a\""));
  EXPECT_THAT(json_fault("[{\"q\": \"one\", \"a\": 1}, {\"q\": \"two\", \"a\": []}]"),
              Names("object 2", "\"a\""));
  for (const char* entry : {"7", "null", "[]", "\"text\"", "[{\"q\": \"x\", \"a\": 1}]"})
    EXPECT_THAT(json_fault(std::string("[{\"q\": \"one\", \"a\": 1}, ") + entry + "]"),
                AllOf(Names("object 2"), HasSubstr("not a JSON object")))
        << entry;
  EXPECT_THAT(json_fault("[]"), Names("no questions"));
  EXPECT_THAT(json_fault("[{\"q\": \"one\", \"a\": 1}, {\"q\": "), Names("byte 30", "1 objects"));
  EXPECT_THAT(json_fault("[{\"q\": \"one\", \"a\": 1}"), Names("not JSON", "1 objects"));
  EXPECT_THAT(json_fault("[{\"q\": \"one\", \"a\": 1}] more"), Names("not JSON", "byte 24"));
  EXPECT_THAT(json_fault("[{\"q\": \"\xff\", \"a\": 1}]"), Names("not JSON", "byte 9"));
}

TEST(DataRows, AnOptionalFieldMayBeMissing) {
  const TemporaryDirectory directory;
  const std::array fields = {DataField{"q"}, DataField{.name = "s", .number = true, .optional = true}};
  const auto values = [&](const char* name, const std::string& content,
                          const std::vector<std::string>& columns) {
    write_file_atomically(directory.path() / name, content);
    std::vector<std::string> all;
    for (const DataRow& row : read_rows(directory.path() / name, fields, columns).rows)
      all.push_back(row.values.at(0) + "|" + row.values.at(1));
    return all;
  };
  EXPECT_THAT(
      values(
          "a.jsonl",
          "{\"q\": \"a\", \"s\": \"x\"}\n{\"q\": \"b\"}\n{\"q\": \"c\", \"s\": null}\n{\"q\": \"d\", \"s\": \" \"}\n{\"q\": \"e\", \"s\": 5}",
          {}),
      ElementsAre("a|x", "b|", "c|", "d|", "e|5"));
  EXPECT_THROW(values("a.jsonl", "{\"q\": \"a\", \"s\": true}", {}), CorruptFile);
  EXPECT_THAT(values("a.csv", "s,q\nx,a\n,b\n", {}), ElementsAre("a|x", "b|"));
  EXPECT_THAT(values("a.csv", "q\na\n", {}), ElementsAre("a|"));
  EXPECT_THAT(values("a.csv", "1,a,x\n2,b\n", {"n", "q", "s"}), ElementsAre("a|x", "b|"));
  EXPECT_THROW(values("a.csv", "1\n", {"n", "q", "s"}), CorruptFile);
  EXPECT_THROW(values("a.csv", "1,a,x,y\n", {"n", "q", "s"}), CorruptFile);
  EXPECT_THROW(values("a.csv", "x,a\n1\n", {"s", "n", "q"}), CorruptFile)
      << "only the last columns may be missing";
  EXPECT_THROW(values("a.csv", "q,s\na\n", {}), CorruptFile)
      << "a header line says how many fields there are";
}

}  // namespace
}  // namespace allot::evaluation
