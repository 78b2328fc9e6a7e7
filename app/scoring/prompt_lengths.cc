#include "app/scoring/prompt_lengths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "app/scoring/reply_plan.h"
#include "base/ascii.h"
#include "base/error.h"
#include "model/tokenizer.h"
#include "worker/prompt_room.h"

namespace allot::app {
namespace {

constexpr double kLevel = 0.05;

}  // namespace

std::vector<int64_t> prompt_lengths(const std::filesystem::path& model, const evaluation::Task& task,
                                    const std::string& prompt_style, int32_t new_tokens,
                                    std::span<const evaluation::Question> questions) {
  const model::Tokenizer tokenizer = model::Tokenizer::load(model);
  const model::PromptEncoder encoder(tokenizer, prompt_form(prompt_style), /*system=*/"",
                                     worker::prompt_room(model, task.middle_cut(), new_tokens));
  std::vector<int64_t> lengths;
  lengths.reserve(questions.size());
  for (const evaluation::Question& question : questions)
    lengths.push_back(std::ssize(encoder.encode(tokenizer, task.prompt(question))));
  return lengths;
}

std::vector<double> joined_scores(std::span<const std::vector<double>> bands) {
  std::vector<double> all;
  for (const std::vector<double>& part : bands) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<double> own_scores(std::span<const LengthScores> schedules) {
  std::vector<std::vector<double>> own;
  for (size_t band = 0; band < schedules.size(); ++band) own.push_back(schedules[band].scores[band]);
  return joined_scores(own);
}

std::vector<int64_t> parse_lengths(std::string_view text) {
  std::vector<int64_t> lengths;
  for (const std::string_view entry : entries_of(text)) {
    const bool thousands = entry.ends_with('k');
    const std::string_view digits = entry.substr(0, entry.size() - (thousands ? 1 : 0));
    int64_t length = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
    constexpr int64_t kMost = int64_t{1} << 32;
    if (error != std::errc{} || end != digits.data() + digits.size() || length < 1 || length > kMost)
      throw UsageError(fmt::format(
          "--lengths: \"{}\" is no number of tokens; expected rising ones, as in 1k,4k,8k", entry));
    if (thousands) length *= 1024;
    if (!lengths.empty() && length <= lengths.back())
      throw UsageError(fmt::format("--lengths: {} does not come after {}; give rising numbers of tokens",
                                   entry, lengths.back()));
    lengths.push_back(length);
  }
  if (lengths.size() == 1)
    throw UsageError(fmt::format("--lengths {} is one band; give at least two, or leave it out", lengths[0]));
  return lengths;
}

double LengthScores::mean() const {
  const std::vector<double> all = joined_scores(scores);
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

LengthVerdict judge_lengths(std::span<const LengthScores> schedules) {
  LengthVerdict verdict;
  verdict.best =
      static_cast<size_t>(std::ranges::max_element(schedules, {}, &LengthScores::mean) - schedules.begin());
  verdict.by_length =
      evaluation::compare_scores(own_scores(schedules), joined_scores(schedules[verdict.best].scores));
  verdict.pays = verdict.by_length.difference > 0 && verdict.by_length.p_value < kLevel;
  return verdict;
}

}  // namespace allot::app
