#include "evaluation/accuracy.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/number_text.h"
#include "evaluation/json_fields.h"
#include "evaluation/task.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGradedTest = "permutation";
constexpr const char* kRightOrWrongTest = "mcnemar-exact";

Interval read_interval(JsonFields& fields, double min) {
  const auto [low, high] = fields.interval("interval_95", min, 1);
  return {low, high};
}

bool within(double value, const Interval& interval) {
  return value >= interval.low - kRatioTolerance && value <= interval.high + kRatioTolerance;
}

}  // namespace

Json to_json(const Interval& interval) {
  return Json::array({interval.low, interval.high});
}

Accuracy accuracy_of(std::span<const double> scores) {
  const MeanScore mean = mean_of_scores(scores);
  return {.questions = std::ssize(scores),
          .correct = std::ranges::count(scores, 1.0),
          .value = mean.mean,
          .interval = mean.interval};
}

std::map<std::string, Accuracy> accuracy_by(const std::string& field, std::span<const Question> questions,
                                            std::span<const double> scores) {
  std::map<std::string, std::vector<double>> groups;
  for (size_t i = 0; i < scores.size(); ++i)
    if (const auto found = questions[i].fields.find(field); found != questions[i].fields.end())
      groups[found->second].push_back(scores[i]);
  std::map<std::string, Accuracy> accuracies;
  for (const auto& [value, of_value] : groups) accuracies.emplace(value, accuracy_of(of_value));
  return accuracies;
}

Json to_json(const Accuracy& accuracy) {
  return {{"n", accuracy.questions},
          {"correct", accuracy.correct},
          {"accuracy", accuracy.value},
          {"interval_95", to_json(accuracy.interval)}};
}

Accuracy read_accuracy(JsonFields& fields) {
  Accuracy accuracy;
  accuracy.questions = fields.integer<int64_t>("n", 1);
  accuracy.correct = fields.integer<int64_t>("correct", 0, accuracy.questions);
  accuracy.interval = read_interval(fields, 0);
  const double full_marks = accuracy.questions == 0 ? 0
                                                    : static_cast<double>(accuracy.correct) /
                                                          static_cast<double>(accuracy.questions);
  accuracy.value = fields.has("accuracy") ? fields.real("accuracy", 0, 1) : full_marks;
  if (accuracy.value < full_marks - kRatioTolerance) {
    fields.fault(fmt::format("{} is {}, less than the share of full marks, {}/{}", fields.where("accuracy"),
                             accuracy.value, accuracy.correct, accuracy.questions));
  }
  if (!within(accuracy.value, accuracy.interval)) {
    fields.fault(fmt::format("{} [{}, {}] does not hold the accuracy {}", fields.where("interval_95"),
                             accuracy.interval.low, accuracy.interval.high, accuracy.value));
  }
  return accuracy;
}

Json to_json(const PairedTest& test, std::string_view first, std::string_view second) {
  return {{"test", test.graded ? kGradedTest : kRightOrWrongTest},
          {fmt::format("only_{}", first), test.pairs.only_first},
          {fmt::format("only_{}", second), test.pairs.only_second},
          {"p_value", test.p_value},
          {"difference", test.difference},
          {"interval_95", to_json(test.interval)}};
}

PairedTest read_paired_test(JsonFields& fields, std::string_view first, std::string_view second,
                            int64_t questions) {
  PairedTest paired;
  const std::string test = fields.text("test");
  if (!test.empty() && test != kGradedTest && test != kRightOrWrongTest) {
    fields.fault(fmt::format("{} is \"{}\", expected \"{}\" or \"{}\"", fields.where("test"), test,
                             kRightOrWrongTest, kGradedTest));
  }
  paired.graded = test == kGradedTest;
  paired.questions = paired.pairs.questions = questions;
  paired.pairs.only_first = fields.integer<int64_t>(fmt::format("only_{}", first).c_str(), 0);
  paired.pairs.only_second = fields.integer<int64_t>(fmt::format("only_{}", second).c_str(), 0);
  paired.p_value = fields.real("p_value", 0, 1);
  paired.difference = fields.real("difference", -1, 1);
  paired.interval = read_interval(fields, -1);
  if (!within(paired.difference, paired.interval)) {
    fields.fault(fmt::format("{} [{}, {}] does not hold the difference {}", fields.where("interval_95"),
                             paired.interval.low, paired.interval.high, paired.difference));
  }
  return paired;
}

std::string text(const Accuracy& accuracy) {
  return percent_with_range(accuracy.value, accuracy.interval.low, accuracy.interval.high);
}

std::string text(const PairedTest& test) {
  return fmt::format("{}, p {}", points_with_range(test.difference, test.interval.low, test.interval.high),
                     p_value_text(test.p_value));
}

}  // namespace allot::evaluation
