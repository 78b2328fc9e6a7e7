#include "aggregator/records.h"

namespace allot::aggregator {

std::string_view name(Stage stage) {
  switch (stage) {
    case Stage::kLearn:
      return "learn";
    case Stage::kVerify:
      return "verify";
    case Stage::kFinished:
      return "finished";
    case Stage::kPreflight:
      return "preflight";
    case Stage::kCheck:
      return "check";
    case Stage::kEvaluate:
      return "evaluate";
  }
  return "";
}

Split split_of(Stage stage) {
  return stage == Stage::kVerify ? Split::kHeldout : Split::kTrain;
}

}  // namespace allot::aggregator
