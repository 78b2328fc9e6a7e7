// What `allot calibrate` is about to do, without a model.
#include "app/scoring/calibration_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class CalibrationPlanTest : public ::testing::Test {
 protected:
  CalibrationPlan plan_of(const Words& more) {
    Words words = {"--model", small_.model.string()};
    words.insert(words.end(), more.begin(), more.end());
    CalibrationPlanOptions options;
    OptionSet set("calibrate", "summary", "example");
    declare_calibration_options(&set, &options);
    CalibrationPlan made;
    set.resolve_with([&] { made = plan_calibration(&options); });
    EXPECT_EQ(set.parse(words), OptionSet::Parsed::kRun);
    return made;
  }
  template <class Error>
  std::string refusal(const Words& words) {
    return message_of<Error>([&] { plan_of(words); });
  }
  evaluation::Calibration found() const {
    return {.schedule = {{9, 3, 2, 2, 4, 4, 4, 4}},
            .uniform = {.mean = 0.2, .standard_error = 0.01},
            .learned = {.mean = 0.1, .standard_error = 0.02},
            .texts = 6,
            .positions = 30};
  }

  std::filesystem::path directory_ = fresh_directory();
  SmallModel small_ = write_small_model(directory_);
  std::string data_ = small_.heldout.string();
};

TEST_F(CalibrationPlanTest, TakesTextsTotalsAndMethod) {
  const CalibrationPlan plan = plan_of({"--data", data_, "--total", "32,16", "--estimator", "threshold",
                                        "--floor", "2", "--steps", "7", "--seed", "5"});
  EXPECT_THAT(plan.totals, ElementsAre(32, 16));
  EXPECT_THAT(plan.texts.texts, SizeIs(12));
  EXPECT_EQ(plan.search.layers, 8);
  EXPECT_EQ(plan.search.floor, 2);
  EXPECT_EQ(plan.search.steps, 7);
  EXPECT_EQ(plan.search.seed, 5u);
  EXPECT_EQ(plan.texts.options.mode, "reply");
  const Json conditions = evaluation::to_json(plan.texts.conditions);
  EXPECT_EQ(conditions["attention"]["estimator"], "threshold");
  EXPECT_EQ(conditions["attention"]["prefill"], "sampled");
  EXPECT_EQ(conditions["learned_on"]["questions"], 12);
  EXPECT_FALSE(conditions.contains("measured_on"));
  EXPECT_EQ(
      plan_of({"--data", data_, "--total", "32", "--mode", "decode"}).texts.conditions.attention.prefill,
      kernels::Prefill::kDense);
}

TEST_F(CalibrationPlanTest, ItsScheduleFileSaysHowItWasFound) {
  const CalibrationPlan plan = plan_of({"--data", data_, "--total", "32", "--seed", "4"});
  const std::filesystem::path path = directory_ / "schedule.json";
  write_schedule_file(path, schedule_file(plan, found()));
  const ScheduleFile file = read_schedule_file(path);
  EXPECT_EQ(file.schedule, found().schedule);
  EXPECT_EQ(file.total, 32);
  EXPECT_EQ(file.run_id, "calibrate-joint-32-seed4");
  EXPECT_EQ(file.conditions.attention, kernels::usual_method());
  EXPECT_EQ(file.evaluation, EvaluationRecord());
  ASSERT_TRUE(file.calibration.has_value());
  EXPECT_EQ(file.calibration->mode, "reply");
  EXPECT_EQ(file.calibration->reward, "divergence");
  ASSERT_TRUE(file.calibration->check.has_value());
  EXPECT_EQ(file.calibration->check->texts, 6);
  EXPECT_EQ(file.calibration->check->positions, 30);
  EXPECT_EQ(file.calibration->check->uniform, found().uniform);
  EXPECT_EQ(file.calibration->check->learned, found().learned);
}

TEST_F(CalibrationPlanTest, TotalsMayBeRowsAndItsScheduleFileSaysSo) {
  const CalibrationPlan plan =
      plan_of({"--data", data_, "--total", "32", "--estimator", "joint", "--unit", "rows"});
  const ScheduleFile file = parse_schedule_file(format_schedule_file(schedule_file(plan, found())), "file");
  EXPECT_EQ(file.conditions.attention.unit, kernels::BudgetUnit::kRows);
  EXPECT_EQ(file.run_id, "calibrate-joint-rows-32-seed0");
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32", "--estimator", "sys", "--unit", "rows"}),
              Names("--unit", "rows", "sys", "joint"));
}

TEST_F(CalibrationPlanTest, TextThatIsNoTaskGivesAScheduleAllTheSame) {
  write_file_atomically(directory_ / "text", "one two three one two three one two");
  const CalibrationPlan plan =
      plan_of({"--text", (directory_ / "text").string(), "--tokens", "4", "--total", "32"});
  EXPECT_THAT(plan.texts.texts, SizeIs(2));
  const ScheduleFile file = parse_schedule_file(format_schedule_file(schedule_file(plan, found())), "file");
  EXPECT_TRUE(file.conditions.unknown.contains("task.name"));
  ScheduleFile of_run = file;
  of_run.calibration.reset();
  EXPECT_THAT(message_of<InvalidArgument>([&] { format_schedule_file(of_run); }),
              Names("conditions.task.name"));
  of_run.calibration = CalibrationRecord{.mode = "reply", .check = {}};
  EXPECT_THAT(message_of<InvalidArgument>([&] { format_schedule_file(of_run); }),
              Names("conditions.task.name"))
      << "a run that learned from divergences has a task";
}

TEST_F(CalibrationPlanTest, AFileThatSaysAnotherRewardOrModeIsRefused) {
  const CalibrationPlan plan = plan_of({"--data", data_, "--total", "32"});
  Json json = Json::parse(format_schedule_file(schedule_file(plan, found())));
  const auto refused = [&](const char* field, const Json& value) {
    Json other = json;
    other["calibration"][field] = value;
    return message_of<CorruptFile>([&] { parse_schedule_file(other.dump(), "file"); });
  };
  EXPECT_THAT(refused("reward", "speed"), Names("calibration.reward", "speed", "divergence"));
  EXPECT_THAT(refused("mode", "aloud"), Names("calibration.mode", "aloud", "reply"));
  EXPECT_THAT(refused("texts", 0), Names("calibration.texts"));
  EXPECT_THAT(refused("uniform", {{"divergence", -1}, {"standard_error", 0}}),
              Names("calibration.uniform.divergence"));
  EXPECT_THAT(refused("more", 1), Names("calibration.more"));
}

TEST_F(CalibrationPlanTest, ATotalMayBeLookedForByItsMargin) {
  const CalibrationPlan plan = plan_of({"--data", data_, "--total", "auto", "--margin", "0.05"});
  EXPECT_THAT(plan.totals, SizeIs(0));
  EXPECT_EQ(plan.margin, 0.05);
}

TEST_F(CalibrationPlanTest, RefusesOptionsThatDoNotFit) {
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "auto"}), Names("--margin"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32", "--margin", "0.1"}),
              Names("--margin", "--total auto"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_}), Names("--total"));
  EXPECT_THAT(refusal<UsageError>({"--total", "32"}), Names("--text", "--data"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32,x"}), Names("--total", "x"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32,"}), Names("--total"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32,32"}), Names("--total", 32));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "15", "--floor", "2"}), Names(15, 2, 8, 16));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "32", "--estimator", "exact"}),
              Names("--estimator", "exact"));
}

}  // namespace
}  // namespace allot::app
