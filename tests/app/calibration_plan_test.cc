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
    set.resolve_with([&] { made = plan_calibration(&options, &set); });
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

TEST_F(CalibrationPlanTest, BoundsHoldAsInARun) {
  const CalibrationPlan plan =
      plan_of({"--data", data_, "--total", "32,40", "--bounds", "0-1:exact,3:2,4-5:-6"});
  EXPECT_EQ(plan.search.bounds, policy::parse_bounds("0-1:exact,3:2,4-5:-6"));
  EXPECT_THAT(describe(plan), Names("bounds", "0-1:exact,3:2,4-5:-6"));

  evaluation::Calibration made = found();
  made.schedule.samples = {kExactLayer, kExactLayer, 9, 2, 6, 6, 5, 4};
  const std::filesystem::path path = directory_ / "schedule.json";
  write_schedule_file(path, schedule_file(plan, made));
  EXPECT_EQ(read_schedule_file(path).schedule, made.schedule);
  EXPECT_EQ(read_schedule_file(path).total, 32);

  const auto refused = [&](const char* bounds, const Words& more = {}) {
    Words words = {"--data", data_, "--total", "32", "--bounds", bounds};
    words.insert(words.end(), more.begin(), more.end());
    return refusal<UsageError>(words);
  };
  EXPECT_THAT(refused("0:exakt"), Names("0:exakt"));
  EXPECT_THAT(refused("0-7:exact"), Names("0-7:exact", 8));
  EXPECT_THAT(refused("8:2"), Names("8:2", 7));
  EXPECT_THAT(refused("0:30"), Names("0:30", 37, 32));
  EXPECT_THAT(refused("0-6:exact", {"--floor", "33"}), Names("--total 32", "--floor 33", "1 layers"));
  EXPECT_THAT(refused("0:exact", {"--measurements", "m.jsonl"}), Names("--measurements", "0:exact"));
  EXPECT_THAT(refusal<UsageError>({"--data", data_, "--total", "auto", "--margin", "1", "--bounds", "9:2"}),
              Names("9:2", 7));
}

TEST_F(CalibrationPlanTest, ATotalMayBeLookedForByItsMargin) {
  const CalibrationPlan plan = plan_of({"--data", data_, "--total", "auto", "--margin", "0.05"});
  EXPECT_THAT(plan.totals, SizeIs(0));
  EXPECT_EQ(plan.margin, 0.05);
}

TEST_F(CalibrationPlanTest, ATotalMayBeLookedForByItsAccuracy) {
  const std::string train = (directory_ / "train.jsonl").string();
  write_file_atomically(train, "{\"question\": \"What is 1 + 1?\", \"answer\": \"1 + 1 = 2\\n#### 2\"}\n");
  const Words words = {"--data",    train, "--total",     "auto", "--accuracy-margin", "30",
                       "--heldout", data_, "--estimator", "sys",  "--max-new-tokens",  "9"};
  const CalibrationPlan plan = plan_of(words);
  ASSERT_TRUE(plan.accuracy.has_value());
  EXPECT_THAT(plan.totals, SizeIs(0));
  EXPECT_EQ(plan.accuracy->margin, 0.3);
  const evaluation::Conditions& of_answers = plan.accuracy->scoring.conditions;
  EXPECT_EQ(of_answers.generation.temperature, 0);
  EXPECT_EQ(of_answers.generation.max_new_tokens, 9);
  EXPECT_EQ(of_answers.measured_on->questions, 12);
  EXPECT_EQ(of_answers.attention, plan.texts.conditions.attention) << "as the schedules are measured";

  const std::vector<double> dense(12, 1.0);
  std::vector<double> learned = dense;
  learned[3] = 0;
  const evaluation::AccuracyLoss loss = evaluation::accuracy_loss(learned, dense, 0.3);
  const ScheduleFile file =
      parse_schedule_file(format_schedule_file(schedule_file(plan, found(), loss)), "file");
  EXPECT_EQ(file.evaluation.learned->correct, 11);
  EXPECT_EQ(file.evaluation.dense->correct, 12);
  EXPECT_EQ(file.conditions.measured_on, of_answers.measured_on);
  EXPECT_EQ(file.conditions.learned_on->questions, 1);
  EXPECT_EQ(file.conditions.generation, of_answers.generation);
  EXPECT_TRUE(file.conditions.unknown.empty());

  const auto with = [&](const Words& more) {
    Words all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  EXPECT_THAT(refusal<UsageError>(with({"--heldout-questions", "8"})), Names("30", "8 questions", "32.5", 9));
  EXPECT_THAT(refusal<UsageError>(with({"--heldout-questions", "13"})), Names("--heldout-questions", 13, 12));
  EXPECT_THAT(refusal<UsageError>(with({"--margin", "1"})), Names("--margin", "--accuracy-margin"));
  EXPECT_THAT(refusal<UsageError>({"--data", train, "--total", "auto", "--accuracy-margin", "30"}),
              Names("--accuracy-margin", "--heldout"));
  EXPECT_THAT(refusal<UsageError>({"--data", train, "--total", "32", "--accuracy-margin", "30"}),
              Names("--accuracy-margin", "--total auto"));
  for (const Words& alone : {Words{"--heldout", data_}, Words{"--heldout-questions", "8"},
                             Words{"--max-new-tokens", "9"}, Words{"--grader", "cat"}}) {
    Words all = {"--data", train, "--total", "32"};
    all.insert(all.end(), alone.begin(), alone.end());
    EXPECT_THAT(refusal<UsageError>(all), Names(alone.front(), "--accuracy-margin"));
  }
  EXPECT_THAT(refusal<UsageError>(
                  {"--data", data_, "--total", "auto", "--accuracy-margin", "30", "--heldout", data_}),
              Names(12, data_))
      << "questions that the search saw";
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
