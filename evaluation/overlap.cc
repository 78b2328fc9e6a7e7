#include "evaluation/overlap.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <span>
#include <string>
#include <unordered_map>

#include "base/ascii.h"
#include "base/error.h"
#include "base/sha256.h"

namespace allot::evaluation {
namespace {

constexpr size_t kRowsNamed = 10;

std::string rows(std::span<const RepeatedQuestion> repeats, uint32_t RepeatedQuestion::*row) {
  std::vector<uint32_t> named;
  for (const RepeatedQuestion& repeat : repeats.first(std::min(repeats.size(), kRowsNamed)))
    named.push_back(repeat.*row);
  const size_t more = repeats.size() - named.size();
  return fmt::format("{}{}", fmt::join(named, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

// Of the prompt, which may be long. Grading fields and solutions do not tell questions apart.
std::string key_of(const Task& task, Question question) {
  question.text = trim(question.text);
  for (auto& [name, text] : question.fields) text = trim(text);
  return sha256_hex(task.prompt(question));
}

}  // namespace

std::vector<RepeatedQuestion> repeated_questions(const Task& task, const Dataset& first,
                                                 const Dataset& second) {
  std::unordered_map<std::string, uint32_t> row_of;
  for (const Question& question : first.questions) row_of.emplace(key_of(task, question), question.id + 1);
  std::vector<RepeatedQuestion> repeats;
  for (const Question& question : second.questions) {
    const auto found = row_of.find(key_of(task, question));
    if (found != row_of.end()) repeats.push_back({found->second, question.id + 1});
  }
  return repeats;
}

void check_held_out(const Task& task, const Dataset& train, const Dataset& heldout) {
  const std::vector<RepeatedQuestion> repeats = repeated_questions(task, train, heldout);
  if (repeats.empty()) return;
  throw UsageError(fmt::format(
      "{} of the {} questions of --heldout {} are also in --data {}: rows {} of the held-out file are "
      "rows {} of the file learned on; remove them from one of the two files, so that the verdict is on "
      "questions that the learning never saw",
      repeats.size(), heldout.questions.size(), heldout.path.string(), train.path.string(),
      rows(repeats, &RepeatedQuestion::second_row), rows(repeats, &RepeatedQuestion::first_row)));
}

}  // namespace allot::evaluation
