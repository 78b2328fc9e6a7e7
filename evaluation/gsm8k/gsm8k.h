// GSM8K (Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021): grade-school word
// problems with one number as the answer. README.md in this folder describes prompts, extraction,
// grading and versions.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "evaluation/gsm8k/number.h"
#include "evaluation/task.h"

namespace allot::evaluation::gsm8k {

// Where the questions are to be had, for messages and help.
inline constexpr std::string_view kWhereToGet =
    "GSM8K is train.jsonl and test.jsonl in grade_school_math/data of github.com/openai/grade-school-math";

class Gsm8k final : public Task {
 public:
  explicit Gsm8k(PromptStyle style) : style_(style) {}

  std::string_view name() const override { return "gsm8k"; }
  int version() const override { return 1; }
  // Rows of a question and a solution that ends with "#### number". Where the file is missing, the message
  // says how to get GSM8K.
  using Task::load;
  Dataset load(const std::filesystem::path& file, const FieldNames& fields) const override;
  std::string prompt(const Question& question) const override;
  Grade grade(const Question& question, std::string_view reply) const override;
  bool complete(std::string_view reply) const override;
  std::string_view completing_characters() const override;
  // The papers' settings for all styles but kPlain, which has greedy decoding and 256 new tokens.
  Generation generation_defaults() const override;
  Question gold(std::string_view answer) const override;
  bool equal(const Question& question, std::string_view answer) const override;

 private:
  PromptStyle style_;
};

}  // namespace allot::evaluation::gsm8k
