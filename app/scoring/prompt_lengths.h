// How long the prompts of questions are, by which schedules with bands (files/schedule_file.h) are chosen,
// and what choosing so is worth.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/statistics.h"
#include "evaluation/task.h"

namespace allot::app {

// Tokens of each question's prompt as the engine has them: with the markup of the prompt style, and without
// what prompts too long for `new_tokens` more lose in their middle. Reads the tokenizer and the config of the
// model's directory alone; throws their errors.
std::vector<int64_t> prompt_lengths(const std::filesystem::path& model, const evaluation::Task& task,
                                    const std::string& prompt_style, int32_t new_tokens,
                                    std::span<const evaluation::Question> questions);

// "1k,4k,8k" or "1000,8192": rising numbers of tokens, of which k is 1,024. Throws UsageError naming the
// entry.
std::vector<int64_t> parse_lengths(std::string_view text);

// Scores on the held-out questions of all bands, band by band, under the schedule of one band for all of
// them.
struct LengthScores {
  std::vector<std::vector<double>> scores;  // [bands][questions]
  double mean() const;                      // over all questions
};

// The scores of the bands, one behind the other.
std::vector<double> joined_scores(std::span<const std::vector<double>> bands);
// Of each band those under its own schedule; `schedules` has one for each band.
std::vector<double> own_scores(std::span<const LengthScores> schedules);

// What a schedule for each band is worth beside one for all.
struct LengthVerdict {
  size_t best = 0;                   // the band whose schedule is the best for all lengths
  evaluation::PairedTest by_length;  // each band's own schedule against that one, over all questions
  bool pays = false;                 // it is better, by that test at 5 %
};
// `schedules` has one for each band, on the same questions.
LengthVerdict judge_lengths(std::span<const LengthScores> schedules);

}  // namespace allot::app
