// A task from a file: prompt template, stop strings, extraction by regular expressions and one of four ways
// to grade. docs/tasks.md describes the file; the whole of it is the task's identity.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/field_template.h"
#include "evaluation/grader.h"
#include "evaluation/gsm8k/gsm8k.h"
#include "evaluation/pattern.h"
#include "evaluation/task.h"

namespace allot::evaluation {

// A task file travels in every welcome of a run's aggregator.
inline constexpr size_t kMaxTaskFileBytes = 64 * 1024;

enum class GradeBy : uint8_t {
  kExact,     // the extracted text is the gold answer
  kNumber,    // as GSM8K compares numbers (gsm8k/README.md)
  kChoice,    // one letter
  kProgram,   // a grader decides
  kContains,  // texts of the gold answer stand in the reply: one of them, or the share that does
  kIntegers,  // the share of the first few integers of the reply that are in the gold answer
  kPython,    // a Python program with the reply in it ends without an error (code_grader.h)
};
std::string_view name(GradeBy how);             // "exact", "number", "choice", "program", …
GradeBy parse_grade_by(std::string_view text);  // throws InvalidArgument naming all

class FileTask final : public Task {
 public:
  // `grader` may be null: a task that is graded by a program then only asks. Throws CorruptFile listing
  // everything that is wrong with the text, each with the name of its field.
  FileTask(std::string definition, std::unique_ptr<Grader> grader);
  ~FileTask() override;

  std::string_view name() const override { return name_; }
  int version() const override { return version_; }
  std::string_view definition() const override { return definition_; }
  bool message() const override { return message_; }
  bool several_answers() const override { return how_ == GradeBy::kContains || how_ == GradeBy::kIntegers; }
  bool needs_grader() const override { return how_ == GradeBy::kProgram || runs_code(); }
  bool runs_code() const override { return how_ == GradeBy::kPython; }
  // Rows of a question, an answer and the fields that the task file names, each a text or a number. Throws
  // UsageError, too, when the prompt names the field of the answer.
  using Task::load;
  Dataset load(const std::filesystem::path& file, const FieldNames& fields) const override;
  std::string prompt(const Question& question) const override;
  // What comes before the first stop string is graded.
  Grade grade(const Question& question, std::string_view reply) const override;
  bool complete(std::string_view reply) const override;
  std::string_view completing_characters() const override { return completing_; }
  std::span<const std::string> continuations() const override { return choose_; }
  std::optional<MiddleCut> middle_cut() const override { return middle_cut_; }
  std::span<const std::string> by() const override { return by_; }
  Generation generation_defaults() const override { return generation_; }
  Question gold(std::string_view answer) const override;
  bool equal(const Question& question, std::string_view answer) const override;

 private:
  // A regular expression and which of its matches counts.
  struct Extraction {
    Pattern pattern;
    bool last = false;
    std::string remove;  // is taken out of the text first
    std::optional<std::string> find(std::string_view text) const;
  };
  void read(std::vector<std::string>* faults);
  void read_prompt(const std::string& text, std::vector<std::string>* faults);
  void read_program(const std::string& text, std::vector<std::string>* faults);
  void need(const std::string& field);
  std::string_view field_of(const Question& question, const std::string& field) const;
  double share_of(const Question& question, std::string_view reply) const;
  Grade graded_by(const Question& question, std::string_view reply,
                  const std::optional<std::string>& extracted) const;
  std::string gold_answer(std::string_view answer) const;
  // The letter that `text` is, or nothing.
  std::optional<char> choice(std::string_view text) const;

  std::string definition_;
  std::unique_ptr<Grader> grader_;
  std::string name_;
  bool message_ = false;
  int version_ = 1;
  FieldTemplate prompt_;
  FieldTemplate program_;                 // of kPython
  std::vector<std::string> columns_;      // of CSV without a header line
  std::vector<std::string> field_names_;  // of the lines, besides question and answer
  std::vector<std::string> stop_;
  std::string completing_;
  bool strip_ = false;  // fields lose the white space at their ends before they are put into the prompt
  std::optional<MiddleCut> middle_cut_;
  std::vector<std::string> by_;
  std::vector<std::string> choose_;
  std::optional<Extraction> extract_;  // without one the whole reply is the answer
  std::optional<Extraction> gold_;     // where the answer stands in a worked solution
  GradeBy how_ = GradeBy::kExact;
  bool ignore_case_ = false;
  std::string choices_;
  bool share_ = false;    // kContains: the share of the texts, not one of them
  int32_t seconds_ = 3;   // kPython: that a program may take
  int32_t integers_ = 1;  // kIntegers: how many of the reply count
  Generation generation_;
  gsm8k::Gsm8k numbers_{PromptStyle::kPlain};
};

}  // namespace allot::evaluation
