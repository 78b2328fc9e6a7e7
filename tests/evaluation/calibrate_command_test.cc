// calibrate on the embedded model, as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/frontier.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(CalibrateCommand, LearnsASchedulePerTotalThatOtherCommandsRead) {
  const std::filesystem::path out = fresh_directory() / "calibration";
  const CommandResult result = run("calibrate", {"--limit",
                                                 "24",
                                                 "--estimator",
                                                 "sys",
                                                 "--total",
                                                 "64,40",
                                                 "--steps",
                                                 "8",
                                                 "--pairs",
                                                 "4",
                                                 "--texts-per-step",
                                                 "2",
                                                 "--check-texts",
                                                 "8",
                                                 "--dtype",
                                                 "float32",
                                                 "--out",
                                                 out,
                                                 "--json",
                                                 "--measurements",
                                                 out / "measured.jsonl"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = json_lines(result.out);
  ASSERT_EQ(rows.size(), 2u);
  for (const json& row : rows) {
    EXPECT_LT(row.at("ratio"), 0.8) << "layer 0 of this model matters most by far";
    EXPECT_LT(row.at("learned").at("divergence"), row.at("uniform").at("divergence"));
    EXPECT_GT(row.at("learned").at("top1_agreement"), row.at("uniform").at("top1_agreement"));
    EXPECT_EQ(row.at("measurements"), 64);
    EXPECT_EQ(row.at("texts"), 8);
    EXPECT_EQ(row.at("mode"), "reply");
    const ScheduleFile file = read_schedule_file(row.at("file").get<std::string>());
    EXPECT_EQ(json(file.schedule.samples), row.at("samples"));
    EXPECT_EQ(json(file.total), row.at("total"));
    EXPECT_EQ(file.calibration->check->learned.mean, row.at("learned").at("divergence"));
    EXPECT_GT(file.schedule.samples[0], 2 * file.total / 8);
  }
  for (const char* plot : {"schedule-64.svg", "sensitivities-40.svg", "divergence.svg"})
    EXPECT_THAT(read_file(out / plot), HasSubstr("<svg")) << plot;
  const CommandResult scored =
      run("eval", {"--limit", "4", "--schedule", out / "schedule-64.json", "--json"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(json::parse(scored.out).at("schedules").at(0).at("samples"), rows[0].at("samples"));

  // Learners are rehearsed on what was measured.
  const CommandResult rehearsed =
      run_command({"allot", "bench", "tuner", "--recorded", out / "measured.jsonl", "--method", "pairs",
                   "--episodes", "125", "--instances", "2", "--json"});
  ASSERT_EQ(rehearsed.code, 0) << rehearsed.err;
  const json row = json::parse(rehearsed.out);
  EXPECT_EQ(row.at("family"), "measured");
  EXPECT_GT(row.at("checkpoints").at(0).at("mean"), 0.5);
  EXPECT_EQ(row.at("total"), 64);
  EXPECT_EQ(row.at("conditions").at("attention").at("estimator"), "sys");
  // Two totals of 8 steps of 8 schedules; candidates and finalists of each.
  const std::string measured = read_file(out / "measured.jsonl");
  EXPECT_GE(std::ranges::count(measured, '\n'), 1 + 128 + 4);
  EXPECT_LE(std::ranges::count(measured, '\n'), 1 + 128 + 12);
  const CommandResult too_much = run_command({"allot", "bench", "tuner", "--recorded", out / "measured.jsonl",
                                              "--method", "auto", "--total", "70000"});
  EXPECT_EQ(too_much.code, 1);
  EXPECT_THAT(too_much.err, Names("total", 70000));
  const CommandResult refused =
      run_command({"allot", "bench", "tuner", "--recorded", out / "measured.jsonl", "--family", "equal"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, Names("--recorded", "--family"));

  // And from one of them other totals follow.
  const CommandResult verified =
      run("verify", {"--limit", "4", "--schedule", out / "schedule-64.json", "--total", "64,24", "--json",
                     "--out", out / "frontier.json"});
  ASSERT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.err, AllOf(Names("re-solved", 24, 64), testing::Not(HasSubstr("64: "))));
  const evaluation::Frontier frontier = evaluation::read_frontier(out / "frontier.json");
  json printed = json::parse(verified.out);
  EXPECT_EQ(printed.at("differences"), json::array());
  printed.erase("differences");
  EXPECT_EQ(printed, json::parse(evaluation::format_frontier(frontier)));
  ASSERT_EQ(frontier.points.size(), 2u);
  EXPECT_EQ(frontier.points[0].total, 24);
  EXPECT_TRUE(frontier.points[0].resolved);
  EXPECT_EQ(frontier.points[0].uniform_schedule.samples, std::vector<int32_t>(8, 3));
  EXPECT_FALSE(frontier.points[1].resolved);
  EXPECT_EQ(json(frontier.points[1].learned_schedule.samples), rows[0].at("samples"));
  EXPECT_EQ(frontier.dense.questions, 4);
  EXPECT_EQ(frontier.dense.correct, 4);

  // One sample in the first layer answers nothing, and is as good as any even schedule.
  ScheduleFile poor = read_schedule_file(out / "schedule-64.json");
  std::ranges::reverse(poor.schedule.samples);
  poor.costs.reset();
  write_schedule_file(out / "poor.json", poor);
  const CommandResult even = run("verify", {"--limit", "4", "--schedule", out / "poor.json", "--equal-even",
                                            "--out", out / "equal.json"});
  ASSERT_EQ(even.code, 0) << even.err;
  const evaluation::Frontier equal = evaluation::read_frontier(out / "equal.json");
  ASSERT_EQ(equal.points.size(), 1u);
  EXPECT_EQ(equal.points[0].learned.correct, 0);
  EXPECT_EQ(equal.lost.size(), 4u);
  EXPECT_THAT(equal.lost.at(0).dense, HasSubstr("####"));
  EXPECT_NE(equal.lost.at(0).learned, equal.lost.at(0).dense);
  EXPECT_THAT(even.out, Names("the even schedule is as accurate as", 64, "0.0%"));
  expect_again(even.out);
  // And a schedule that is as good as dense attention needs more samples where they are spread evenly.
  const CommandResult good = run("verify", {"--limit", "4", "--schedule", out / "schedule-64.json",
                                            "--equal-even", "--out", out / "equal.json"});
  ASSERT_EQ(good.code, 0) << good.err;
  const evaluation::Frontier searched = evaluation::read_frontier(out / "equal.json");
  EXPECT_FALSE(searched.even.empty());
  EXPECT_THAT(good.out, Names("the even schedule needs about", "times as many"));
}

TEST(CalibrateCommand, LooksForTheLeastTotalWithinAMargin) {
  const std::filesystem::path out = fresh_directory() / "calibration";
  const CommandResult result =
      run("calibrate",
          {"--limit", "12",      "--estimator", "sys", "--total",          "auto", "--margin",      "1.5",
           "--steps", "3",       "--pairs",     "3",   "--texts-per-step", "2",    "--check-texts", "4",
           "--dtype", "float32", "--out",       out});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("the least total within", 1.5, "mean KL", "one more"));
  EXPECT_TRUE(std::filesystem::exists(out / "schedule-32.json")) << "four samples a layer are the first";
}

TEST(CalibrateCommand, LooksForTheLeastTotalThatLosesLittle) {
  const std::filesystem::path out = fresh_directory() / "calibration";
  const Words words = {"allot",
                       "calibrate",
                       "--model",
                       kModel,
                       "--data",
                       kModel + "/train.jsonl",
                       "--limit",
                       "12",
                       "--estimator",
                       "sys",
                       "--total",
                       "auto",
                       "--accuracy-margin",
                       "60",
                       "--heldout",
                       kData,
                       "--heldout-questions",
                       "8",
                       "--steps",
                       "3",
                       "--pairs",
                       "3",
                       "--texts-per-step",
                       "2",
                       "--check-texts",
                       "4",
                       "--dtype",
                       "float32",
                       "--out",
                       out};
  const CommandResult result = run_command(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("the least total within 60 points", "right of 8 held-out questions",
                                "the estimate does not decide"));
  const json verification = json::parse(read_file(out / "verification.json"));
  const int64_t least = verification.at("least_total");
  ASSERT_GE(verification.at("totals").size(), 2u);
  EXPECT_EQ(verification.at("conditions").at("generation").at("temperature"), 0);
  int64_t before = 0;
  for (const json& total : verification.at("totals")) {
    const int64_t at = total.at("total");
    EXPECT_GT(at, before);
    before = at;
    EXPECT_EQ(total.at("verdict") == "within", total.at("loss_interval_95").at(1) <= 0.6) << total;
    if (at <= least) {
      EXPECT_EQ(total.at("verdict") == "within", at == least) << total;
    }
    // Each total's schedule is kept with what was verified of it, and says what eval says.
    const std::string path = out / ("schedule-" + std::to_string(at) + ".json");
    const ScheduleFile file = read_schedule_file(path);
    EXPECT_EQ(json(file.schedule.samples), total.at("samples"));
    EXPECT_EQ(file.evaluation.learned->correct, total.at("learned").at("correct"));
    if (at != least) continue;
    const CommandResult scored =
        run("eval", {"--limit", "8", "--schedule", "dense", "--schedule", path, "--json"});
    ASSERT_EQ(scored.code, 0) << scored.err;
    const json schedules = json::parse(scored.out).at("schedules");
    EXPECT_EQ(schedules.at(0).at("correct"), total.at("dense").at("correct"));
    EXPECT_EQ(schedules.at(1).at("correct"), total.at("learned").at("correct"));
    EXPECT_EQ(json::parse(scored.out).at("differences"), json::array());
  }
}

TEST(CalibrateCommand, WhatItLearnsWithinBoundsStartsARunWithTheSameOnes) {
  const std::filesystem::path folder = fresh_directory();
  const std::string bounds = "0:exact,2:2,3-4:-5";
  const CommandResult result =
      run("calibrate", {"--limit",          "12",      "--estimator",   "sys",
                        "--total",          "40",      "--bounds",      bounds,
                        "--steps",          "4",       "--pairs",       "3",
                        "--texts-per-step", "2",       "--check-texts", "4",
                        "--dtype",          "float32", "--out",         folder / "calibration"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("bounds: " + bounds, "layer 0 is exact and left out"));
  const std::string schedule = folder / "calibration/schedule-40.json";
  const ScheduleFile file = read_schedule_file(schedule);
  EXPECT_EQ(file.schedule.samples.at(0), kExactLayer);
  EXPECT_EQ(file.schedule.samples.at(2), 2);
  EXPECT_LE(file.schedule.samples.at(3), 5);
  const CommandResult learned = run_command({"allot",       "tune",        "--model",
                                             kModel,        "--data",      kModel + "/train.jsonl",
                                             "--heldout",   kData,         "--total",
                                             "40",          "--estimator", "sys",
                                             "--dtype",     "float32",     "--bounds",
                                             bounds,        "--start",     schedule,
                                             "--policy",    "pairs",       "--episodes",
                                             "4",           "--questions", "2",
                                             "--preflight", "0",           "--heldout-questions",
                                             "0",           "--run",       folder / "run"});
  ASSERT_EQ(learned.code, 0) << learned.err;
  EXPECT_EQ(wire::read_spec(folder / "run/spec.json").policy().start(), file.schedule.to_string());
}

}  // namespace
}  // namespace allot::app
