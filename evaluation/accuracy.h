// What one schedule scored on a set of questions, and how two compare: the one form in which schedule.json,
// ablation.json and every --json output write them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "evaluation/statistics.h"

namespace allot::evaluation {

class JsonFields;
struct Question;

// A stored ratio may differ from the one computed here by rounding, no more.
inline constexpr double kRatioTolerance = 1e-9;

// [low, high].
nlohmann::ordered_json to_json(const Interval& interval);

// Accuracy on `questions` questions. Where replies get partial credit it is their mean score, and `correct`
// counts those with full marks; else it is correct / questions.
struct Accuracy {
  int64_t questions = 0;
  int64_t correct = 0;
  double value = 0;   // in [0, 1]; 0 for no questions
  Interval interval;  // 95 %, of `value`
  friend bool operator==(const Accuracy&, const Accuracy&) = default;
};

// Of these scores in [0, 1], one a question, with the interval of mean_of_scores.
Accuracy accuracy_of(std::span<const double> scores);

// Of the questions of each value of a field of their rows, in the order of the values; `scores` has one for
// each of the first questions. Questions without the field are left out.
std::map<std::string, Accuracy> accuracy_by(const std::string& field, std::span<const Question> questions,
                                            std::span<const double> scores);

// {"n", "correct", "accuracy", "interval_95": [low, high]}.
nlohmann::ordered_json to_json(const Accuracy& accuracy);
// Inverse of to_json. A file from before there was partial credit has no "accuracy". Faults go to `fields`:
// a value that is missing or out of range, one below the share of full marks, one outside its interval.
Accuracy read_accuracy(JsonFields& fields);

// {"test": "mcnemar-exact" or "permutation", "only_FIRST", "only_SECOND", "p_value", "difference",
// "interval_95"}, where FIRST and SECOND name the two schedules.
nlohmann::ordered_json to_json(const PairedTest& test, std::string_view first, std::string_view second);
// Inverse of to_json for a test on `questions` questions.
PairedTest read_paired_test(JsonFields& fields, std::string_view first, std::string_view second,
                            int64_t questions);

// "98.4% (96.1 to 99.4)".
std::string text(const Accuracy& accuracy);
// "+3.1 points (+1.0 to +5.2), p = 0.032".
std::string text(const PairedTest& test);

}  // namespace allot::evaluation
