#include "aggregator/records.h"

#include <algorithm>

namespace allot::aggregator {

std::string_view name(Stage stage) {
  switch (stage) {
    case Stage::kLearn:
      return "learn";
    case Stage::kVerify:
      return "verify";
    case Stage::kFinished:
      return "finished";
  }
  return "";
}

double reward(const std::vector<QuestionResult>& results) {
  const auto correct = std::ranges::count(results, true, &QuestionResult::correct);
  return static_cast<double>(correct) / static_cast<double>(results.size());
}

}  // namespace allot::aggregator
