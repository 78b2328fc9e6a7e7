#include "evaluation/step_times.h"

#include <gmock/gmock.h>

#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "tests/evaluation/document.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

StepTimes example_times() {
  StepTimes times;
  times.conditions.model = example_model();
  times.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  times.tool_version = "0.1.0";
  times.device = "cuda:0 GPU";
  times.sequences = 4;
  times.steps = 160;
  times.schedule.samples = {3, kExactLayer};
  times.contexts = {{1024, {812.5, 800, 830}, {655, 655, 700.25}}, {2048, {900, 0, 1e6}, {700, 1, 701}}};
  return times;
}

std::string error_after(const std::function<void(Json*)>& change) {
  return error_of_changed(format_step_times(example_times()), change,
                          [](const std::string& text) { return parse_step_times(text, "t.json"); });
}

TEST(StepTimes, ReadsBackExactlyWhatWasWritten) {
  const StepTimes times = example_times();
  EXPECT_EQ(parse_step_times(format_step_times(times), "t.json"), times);
}

TEST(StepTimes, EverythingThatIsWrongIsNamed) {
  EXPECT_THAT(error_after([](Json* json) { (*json)["contexts"][1]["context"] = 1024; }),
              Names("t.json", "contexts[1]", 1024, 1025));
  EXPECT_THAT(error_after([](Json* json) {
                (*json)["contexts"][0]["dense_us"]["median"] = 1;
                (*json)["sequences"] = 0;
                (*json)["mood"] = "good";
              }),
              Names("contexts[0].dense_us.median", "sequences", "mood"));
  EXPECT_THAT(error_after([](Json* json) { (*json)["contexts"] = 3; }), Names("contexts", "list"));
  EXPECT_THAT(error_after([](Json* json) { json->erase("device"); }), Names("device"));
  EXPECT_THAT(error_after([](Json* json) { (*json)["schema_version"] = 2; }), Names("schema_version", 2, 1));
  EXPECT_THROW(parse_step_times("{", "t.json"), CorruptFile);
}

}  // namespace
}  // namespace allot::evaluation
