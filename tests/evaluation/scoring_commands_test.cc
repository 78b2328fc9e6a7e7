// eval, verify, ablate and logits on the embedded model, as people run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/ablation.h"
#include "evaluation/frontier.h"
#include "evaluation/task.h"
#include "tests/app/run_command.h"
#include "tests/names.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kModel = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
const std::string kData = kModel + "/heldout.jsonl";

CommandResult run(const std::string& command, const Words& more) {
  Words words = {"allot", command, "--model", kModel, "--data", kData};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words);
}

// The words of a command that has none in quotes.
Words words_of(const std::string& line) {
  Words words;
  std::istringstream command(line);
  for (std::string word; command >> word;) words.push_back(word);
  return words;
}

// Runs the command at the end of a result, which must give that result.
void expect_again(const std::string& result) {
  const size_t start = result.rfind("\nagain: ");
  ASSERT_NE(start, std::string::npos) << result;
  const CommandResult again = run_command(words_of(result.substr(start + 8)));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, result);
}

// The generation options that a command ends up with, as --dry-run prints them.
std::string resolved_generation(const Words& words) {
  const CommandResult result = run_command(words);
  EXPECT_EQ(result.code, 0) << result.err;
  const size_t start = result.out.find("\ndtype = ");
  const size_t end = result.out.find('\n', result.out.find("\nmax-new-tokens = ") + 1);
  return result.out.substr(start, end - start);
}

TEST(GenerationOptionsOfCommands, HaveTheSameDefaultsUnderEveryPromptStyle) {
  const std::filesystem::path run = fresh_directory() / "run";
  for (const std::string& style : evaluation::prompt_style_names()) {
    const Words common = {"--model", kModel, "--prompt-style", style, "--dry-run"};
    const auto words = [&](Words command) {
      command.insert(command.end(), common.begin(), common.end());
      return command;
    };
    const std::string train = kModel + "/train.jsonl";
    const std::string expected = resolved_generation(
        words({"allot", "tune", "--data", train, "--heldout", kData, "--total", "64", "--run", run}));
    EXPECT_THAT(expected, HasSubstr(style == "plain" ? "temperature = 0\n" : "temperature = 0.6\n"));
    EXPECT_EQ(resolved_generation(words({"allot", "aggregator", "--data", train, "--heldout", kData,
                                         "--total", "64", "--run", run})),
              expected);
    EXPECT_EQ(resolved_generation(words({"allot", "eval", "--data", kData})), expected);
    EXPECT_EQ(resolved_generation(words({"allot", "verify", "--data", kData, "--schedule", "uniform:8"})),
              expected);
    EXPECT_EQ(resolved_generation(words({"allot", "ablate", "--data", kData})), expected);
  }
}

// What --help says of an option, its defaults and range included.
std::string help_of(const std::string& command, const std::string& option) {
  const std::string help = run_command({"allot", command, "--help"}).out;
  const size_t start = help.find("  --" + option + " ");
  return start == std::string::npos ? "" : help.substr(start, help.find("\n  --", start) - start);
}

TEST(GenerationOptionsOfCommands, AreTheSameInAllThatAnswerQuestions) {
  for (const char* option : {"dtype", "temperature", "top-p", "repetition-penalty", "max-new-tokens"}) {
    const std::string expected = help_of("tune", option);
    EXPECT_NE(expected, "") << option;
    for (const char* command : {"aggregator", "eval", "verify", "ablate"})
      EXPECT_EQ(help_of(command, option), expected) << command;
  }
}

TEST(EvalCommand, ScoresSchedulesOnTheSameQuestionsAndComparesThem) {
  const CommandResult result =
      run("eval", {"--limit", "24", "--schedule", "dense", "--schedule", "uniform:2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json scores = json::parse(result.out).at("schedules");
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].at("schedule"), "dense");
  EXPECT_EQ(scores[0].at("samples"), json());
  EXPECT_GE(scores[0].at("correct"), 23);
  EXPECT_EQ(scores[1].at("samples"), json({2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_LE(scores[1].at("correct"), 4);
  EXPECT_EQ(scores[1].at("n"), 24);
  EXPECT_GT(scores[1].at("output_tokens"), 24);
  EXPECT_LT(scores[1].at("against_first").at("p_value"), 0.001);
  EXPECT_LT(scores[1].at("against_first").at("interval_95")[1], 0);
}

TEST(EvalCommand, ShowsExactLayersApartFromTheSamples) {
  const Words words = {"--limit", "24", "--schedule", "uniform:2", "--schedule", "exact:1+uniform:2"};
  Words with_json = words;
  with_json.emplace_back("--json");
  const CommandResult result = run("eval", with_json);
  ASSERT_EQ(result.code, 0) << result.err;
  const json scores = json::parse(result.out).at("schedules");
  EXPECT_EQ(scores[0].at("exact_layers"), 0);
  EXPECT_EQ(scores[1].at("samples"), json({"exact", 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(scores[1].at("total"), 14);
  EXPECT_EQ(scores[1].at("exact_layers"), 1);
  // The first layer is the one that needs samples in this model.
  EXPECT_GT(scores[1].at("correct").get<int>(), scores[0].at("correct").get<int>() + 6);
  const CommandResult table = run("eval", words);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr(" 14 + 1 exact "));
}

// The draws of a question depend on neither the batch it is answered in nor what else is scored.
TEST(EvalCommand, AnswersDoNotDependOnTheBatch) {
  const std::filesystem::path folder = fresh_directory();
  const auto details = [&](const std::string& name, const Words& more) {
    Words words = {"--limit",    "12",        "--dtype",     "float32",     "--schedule",
                   "uniform:16", "--details", folder / name, "--estimator", "sys"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run("eval", words);
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(folder / name);
  };
  const std::string together = details("together.jsonl", {});
  EXPECT_EQ(std::count(together.begin(), together.end(), '\n'), 12);
  EXPECT_THAT(together, HasSubstr("\"question\":11"));
  EXPECT_EQ(details("apart.jsonl", {"--max-sequences", "1", "--threads", "1"}), together);
  EXPECT_NE(details("seed.jsonl", {"--seed", "9"}), together);
}

// --- analyze fidelity

std::vector<json> json_lines(const std::string& text) {
  std::vector<json> rows;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    rows.push_back(json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return rows;
}

CommandResult analyze(const Words& more) {
  Words words = {"allot", "analyze", "fidelity", "--model", kModel};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words);
}

TEST(AnalyzeFidelityCommand, PrintsOneJsonObjectForEveryEstimatorAndBudget) {
  const CommandResult result = analyze({"--data", kData, "--limit", "6", "--estimator", "sys,threshold",
                                        "--samples", "2,16", "--dtype", "float32", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = json_lines(result.out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].at("estimator"), "sys");
  EXPECT_EQ(rows[1].at("samples"), 16);
  EXPECT_EQ(rows[2].at("estimator"), "threshold");
  EXPECT_EQ(rows[2].at("conditions").at("attention").at("estimator"), "threshold");
  EXPECT_EQ(rows[2].at("conditions").at("measured_on").at("questions"), 6);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("texts"), 6);
    EXPECT_EQ(row.at("positions"), row.at("tokens"));
    EXPECT_GT(row.at("divergence_standard_error"), 0);
    EXPECT_GT(row.at("microseconds"), 0);
    EXPECT_GT(row.at("comparison_microseconds"), 0);
    EXPECT_LE(row.at("top1_agreement"), 1);
    EXPECT_TRUE(row.contains("rows_per_kv_head"));
  }
  EXPECT_GT(rows[0].at("divergence"), rows[1].at("divergence"));
  EXPECT_GT(rows[2].at("divergence"), rows[3].at("divergence"));
  EXPECT_LT(rows[0].at("top1_agreement"), rows[1].at("top1_agreement"));
}

TEST(AnalyzeFidelityCommand, MeasuresDecodingFromThePromptsLastTokenOn) {
  const Words words = {"--data", kData, "--limit", "3", "--estimator", "sys", "--samples", "4", "--json"};
  Words decode = words;
  decode.insert(decode.end(), {"--mode", "decode"});
  const json all = json_lines(analyze(words).out).at(0), replies = json_lines(analyze(decode).out).at(0);
  EXPECT_EQ(replies.at("tokens"), all.at("tokens"));
  EXPECT_LT(replies.at("positions"), all.at("positions"));
  EXPECT_EQ(replies.at("conditions").at("attention").at("prefill"), "dense");
}

TEST(AnalyzeFidelityCommand, MeasuresATextAndDrawsPlots) {
  const std::filesystem::path folder = fresh_directory();
  std::string text;
  for (const evaluation::Question& question :
       evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain)->load(kData).questions)
    text += question.text + "\n";
  write_file_atomically(folder / "text", text);
  const CommandResult result =
      analyze({"--text", folder / "text", "--tokens", "100", "--limit", "4", "--estimator", "sys",
               "--schedule", "uniform:3", "--schedule", "9,1,9,1,9,1,9,1", "--out", folder / "plots"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 texts"));
  EXPECT_THAT(result.out, HasSubstr("9,1,9,1,9,1,9,1"));
  EXPECT_THAT(read_file(folder / "plots/fidelity_samples.svg"), HasSubstr("<svg"));
  EXPECT_THAT(read_file(folder / "plots/fidelity_microseconds.svg"), HasSubstr("<svg"));
}

TEST(AnalyzeFidelityCommand, RefusesAnAnalysisThatThereIsNot) {
  const CommandResult result = run_command({"allot", "analyze", "variety", "--model", kModel});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("variety", "fidelity"));
}

// --- calibrate

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

TEST(VerifyCommand, RefusesTotalsThatDoNotFitWhatElseIsAsked) {
  const auto refused = [](const Words& words) {
    const CommandResult result = run("verify", words);
    EXPECT_EQ(result.code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(refused({"--schedule", "uniform:8", "--total", "64"}), Names("--total", "uniform:8"));
  EXPECT_THAT(refused({"--schedule", "uniform:8", "--total", "64", "--against", "uniform:4"}),
              Names("--total", "--against"));
  EXPECT_THAT(refused({"--schedule", "uniform:8", "--out", "x.json"}), Names("--out", "--total"));
  EXPECT_THAT(refused({"--total", "64"}), Names("--schedule"));
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
    if (at < least) EXPECT_NE(total.at("verdict"), "within");
    if (at == least) EXPECT_EQ(total.at("verdict"), "within");
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

// --- eval

TEST(EvalCommand, PrintsATableForPeople) {
  const CommandResult result =
      run("eval", {"--limit", "4", "--schedule", "dense", "--schedule", "29,5,5,5,5,5,5,5"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names(95, "accuracy"));
  EXPECT_THAT(result.out, Names("dense", "McNemar"));
  EXPECT_THAT(result.out, Names("29,5,5,5,5,5,5,5"));
}

struct Fault {
  Words words;
  int code;
  std::vector<std::string> named;
};

TEST(EvalCommand, WrongInputIsNamedInOneLine) {
  const std::string truncated = fresh_directory() / "data.jsonl";
  write_file_atomically(truncated, read_file(kData).substr(0, 700));
  for (const auto& [words, code, named] : {
           Fault{{"--data", kData, "--schedule", "1,2,3"}, 1, {"1,2,3", "3", "8"}},
           Fault{{"--data", kData, "--schedule", "uniform:x"}, 1, {"uniform:x", "uniform:N"}},
           Fault{{"--data", kData, "--schedule", "none.json"}, 1, {"none.json", "file"}},
           Fault{{"--data", kData, "--limit", "5000"}, 2, {"--limit", "5000", "1000"}},
           Fault{{"--data", "none.jsonl"}, 1, {"none.jsonl"}},
           Fault{{"--data", truncated}, 1, {"data.jsonl", "line 3", "JSON"}},
           Fault{{"--data", kData, "--task", "mmlu"}, 2, {"--task", "mmlu", "gsm8k"}},
       }) {
    Words command = {"allot", "eval", "--model", kModel};
    command.insert(command.end(), words.begin(), words.end());
    const CommandResult result = run_command(command);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, NamesAll(named));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

// A program that gives a quarter for a wrong answer, and ends with code 3 when it sees `ends_at`.
std::string write_grader(const std::filesystem::path& file, const std::string& ends_at) {
  write_file_atomically(file,
                        "#!/usr/bin/env python3\n"
                        "import json, sys\n"
                        "for line in sys.stdin:\n"
                        "    row = json.loads(line)\n"
                        "    if row['id'] == " +
                            ends_at +
                            ": sys.exit(3)\n"
                            "    right = (row['extracted'] or '').strip() == row['answer'].strip()\n"
                            "    print(json.dumps({'score': 1 if right else 0.25}), flush=True)\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  return file.string();
}

TEST(EvalCommand, ATaskFileIsGradedByAnOutsideProgramAndTheCommandGivesItAgain) {
  const std::filesystem::path directory = fresh_directory();
  // tiny-gsm, graded by a program.
  json task = json::parse(read_file(std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json"));
  task["name"] = "mine";
  task["grade"] = {{"by", "program"}};
  const std::string file = directory / "mine.json";
  write_file_atomically(file, task.dump());
  const std::string grader = write_grader(directory / "grade.py", "-1");
  const Words questions = {"--limit", "8", "--schedule", "dense", "--schedule", "uniform:2", "--json"};
  const auto with = [&](Words words) {
    words.insert(words.end(), questions.begin(), questions.end());
    return words;
  };
  const std::string details = directory / "details.jsonl";
  const CommandResult result = run("eval", with({"--task", file, "--grader", grader, "--details", details}));
  ASSERT_EQ(result.code, 0) << result.err;
  json made = json::parse(result.out);
  EXPECT_EQ(made.at("conditions").at("task").at("definition_sha256"), sha256_file(file));
  EXPECT_EQ(made.at("conditions").at("task").at("prompt_style"), "file");
  // Replies that are not right have a quarter.
  for (const json& schedule : made.at("schedules")) {
    const double right = schedule.at("correct").get<double>();
    EXPECT_DOUBLE_EQ(schedule.at("accuracy"), (right + 0.25 * (8 - right)) / 8);
  }
  EXPECT_LT(made.at("schedules")[1].at("correct"), 8) << "nothing had a quarter";
  // Dense replies end with their answer, so that gsm8k, which ends others there, has the same ones.
  const json own = json::parse(run("eval", with({})).out);
  const json &here = made.at("schedules")[0], &there = own.at("schedules")[0];
  EXPECT_EQ(here.at("output_tokens"), there.at("output_tokens"));
  EXPECT_EQ(here.at("correct"), there.at("correct"));
  EXPECT_THAT(read_file(details), AllOf(HasSubstr("\"score\":0.25"), HasSubstr("\"score\":1.0")));

  Words again = words_of(made.at("command"));
  again.emplace_back("--json");
  const CommandResult second = run_command(again);
  ASSERT_EQ(second.code, 0) << second.err;
  json repeated = json::parse(second.out);
  repeated.erase("seconds");
  made.erase("seconds");
  EXPECT_EQ(repeated, made);

  const CommandResult without = run("eval", with({"--task", file}));
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, Names("mine", "--grader"));
  const CommandResult ended =
      run("eval", with({"--task", file, "--grader", write_grader(directory / "ends.py", "5")}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, Names("mine", "question 5", "ends.py", "code 3", "this one none"));
  EXPECT_EQ(ended.out, "");
}

TEST(EvalCommand, NamesTheConditionsAndWhereTheyDifferFromAScheduleFile) {
  app::ScheduleFile file;
  file.conditions.model = model::identify_model(kModel);
  file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  file.conditions.learned_on = {.sha256 = std::string(64, 'd'), .questions = 9};
  file.conditions.measured_on = {.sha256 = sha256_file(kData), .questions = 9};
  file.conditions.attention.estimator = kernels::Estimator::kStrat;
  file.conditions.generation.max_new_tokens = 12;
  file.schedule = policy::uniform_schedule(8, 4);
  file.total = 32;
  file.run_id = "run";
  file.tool_version = "0.1.0";
  const std::filesystem::path path = fresh_directory() / "schedule.json";
  write_schedule_file(path, file);
  const json result =
      json::parse(run("eval", {"--limit", "2", "--schedule", path, "--prefill", "dense", "--json"}).out);
  EXPECT_EQ(result.at("conditions").at("attention").at("estimator"), "strat");
  EXPECT_EQ(result.at("conditions").at("generation").at("max_new_tokens"), 12);
  EXPECT_EQ(result.at("conditions").at("measured_on").at("questions"), 2);
  EXPECT_EQ(
      result.at("differences"),
      json::array(
          {{{"field", "attention.prefill"}, {"schedule", "sampled"}, {"here", "dense"}, {"file", path}}}));
  EXPECT_LE(result.at("schedules")[0].at("output_tokens"), 2 * 12);
  const CommandResult text = run("eval", {"--limit", "1", "--schedule", path});

  EXPECT_THAT(text.out, Names("strat", path));
}

TEST(VerifyCommand, FindsTheBetterSchedule) {
  const CommandResult result = run("verify", {"--limit", "32", "--estimator", "sys", "--schedule",
                                              "29,5,5,5,5,5,5,5", "--against", "uniform", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json verdict = json::parse(result.out);
  EXPECT_EQ(verdict.at("verdict"), "better");
  EXPECT_EQ(verdict.at("against").at("samples"), json({8, 8, 8, 8, 8, 8, 8, 8}));
  EXPECT_GT(verdict.at("paired").at("interval_95")[0], 0.3);
}

TEST(VerifyCommand, AScheduleDoesNotDifferFromItself) {
  const CommandResult result =
      run("verify", {"--limit", "8", "--schedule", "uniform:8", "--against", "8,8,8,8,8,8,8,8"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("undecided"));
  EXPECT_THAT(result.out, Names("0 questions", "right only here", "0 there"));
  expect_again(result.out);
}

TEST(AblateCommand, FindsTheLayerThatNeedsItsSamples) {
  const std::filesystem::path out = fresh_directory() / "ablation.json";
  const CommandResult result = run("ablate", {"--limit", "16", "--base", "32", "--out", out, "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const evaluation::Ablation ablation = evaluation::read_ablation(out);
  json printed = json::parse(result.out);
  EXPECT_EQ(printed.at("differences"), json::array());
  printed.erase("differences");
  EXPECT_EQ(printed, json::parse(read_file(out)));
  EXPECT_EQ(ablation.conditions.model.id, "tiny-gsm");
  EXPECT_EQ(ablation.conditions.measured_on->questions, 16);
  EXPECT_EQ(ablation.conditions.generation.max_new_tokens, 256);
  EXPECT_EQ(ablation.base.samples, std::vector<int32_t>(8, 32));
  ASSERT_EQ(ablation.layers.size(), 8u);
  EXPECT_GE(ablation.base_accuracy.correct, 14);
  EXPECT_LE(ablation.layers[0].accuracy.correct, 2);
  EXPECT_GT(ablation.layers[7].accuracy.correct, ablation.layers[0].accuracy.correct);
  expect_again(run("ablate", {"--limit", "2", "--base", "4", "--seed", "3"}).out);
}

// Of a run whose replies are short.
wire::RunSpec example_spec() {
  wire::RunSpec spec;
  const model::ModelIdentity model = model::identify_model(kModel);
  spec.mutable_model()->set_id(model.id);
  spec.mutable_model()->set_config_sha256(model.config_sha256);
  spec.mutable_model()->set_tokenizer_sha256(model.tokenizer_sha256);
  spec.mutable_model()->set_weights_fingerprint(model.weights_fingerprint);
  spec.mutable_model()->set_layers(model.layers);
  spec.mutable_model()->set_num_q_heads(model.num_q_heads);
  spec.mutable_model()->set_num_kv_heads(model.num_kv_heads);
  spec.mutable_model()->set_head_dim(model.head_dim);
  auto& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.set_version(1);
  task.set_prompt_style("plain");
  task.mutable_heldout()->set_sha256(sha256_file(kData));
  task.set_heldout_questions(100);
  auto& attention = *spec.mutable_attention();
  attention.set_estimator("iid");
  attention.set_prefill("dense");
  attention.set_tile(32);
  attention.set_score_stage("exact");
  auto& generation = *spec.mutable_generation();
  generation.set_dtype("float32");
  generation.set_top_p(1);
  generation.set_repetition_penalty(1);
  generation.set_max_new_tokens(12);
  return spec;
}

TEST(AblateCommand, TakesTheConditionsOfTheRunWhoseReportIsToShowIt) {
  const std::filesystem::path folder = fresh_directory();
  write_file_atomically(folder / "spec.json", wire::to_json(example_spec()));

  const CommandResult refused = run("ablate", {"--run", folder, "--limit", "2", "--max-new-tokens", "13"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names("generation.max_new_tokens", 13, 12));
  const CommandResult done = run("ablate", {"--run", folder, "--limit", "2"});
  ASSERT_EQ(done.code, 0) << done.err;
  const evaluation::Conditions conditions = evaluation::read_ablation(folder / "ablation.json").conditions;
  EXPECT_EQ(conditions.attention.estimator, kernels::Estimator::kIid);
  EXPECT_EQ(conditions.attention.tile, 32);
  EXPECT_EQ(conditions.generation.dtype, kernels::DType::kFloat32);
  EXPECT_EQ(conditions.generation.max_new_tokens, 12);
}

TEST(VerifyCommand, MeasuresTheTotalsOfARunForItsReport) {
  const std::filesystem::path folder = fresh_directory();
  wire::RunSpec spec = example_spec();
  spec.set_run_id("r-1");
  write_file_atomically(folder / "spec.json", wire::to_json(spec));
  ScheduleFile file;
  file.conditions.model = model::identify_model(kModel);
  file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  file.conditions.attention = {
      .estimator = kernels::Estimator::kIid, .prefill = kernels::Prefill::kDense, .tile = 32};
  file.conditions.generation.dtype = kernels::DType::kFloat32;
  file.conditions.generation.max_new_tokens = 12;
  file.schedule.samples = {36, 4, 4, 4, 4, 4, 4, 4};
  file.total = 64;
  file.costs = policy::shares_of(file.schedule, file.floor);
  file.run_id = "r-1";
  file.tool_version = "0.1.0";
  write_schedule_file(folder / "schedule.json", file);

  const Words words = {"--run", folder, "--total", "16,64", "--limit", "2"};
  const CommandResult done = run("verify", words);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(Names(16, 64, "uniform", "learned", "dense"), HasSubstr("the total of the run")));
  const evaluation::Frontier frontier = evaluation::read_frontier(folder / "frontier.json");
  EXPECT_EQ(frontier.run_id, "r-1");
  EXPECT_EQ(frontier.conditions.attention.tile, 32);
  EXPECT_EQ(frontier.points.at(1).learned_schedule, file.schedule);

  Words longer = words;
  longer.insert(longer.end(), {"--max-new-tokens", "13"});
  const CommandResult other = run("verify", longer);
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("generation.max_new_tokens", 13, 12));
  // Without a report to belong to, what differs from the schedule's conditions is named in the result.
  const Words base = {"--limit", "2", "--max-new-tokens", "13", "--json"};
  const std::string schedule = folder / "schedule.json";
  for (const auto& [command, more] : {std::pair<const char*, Words>{"ablate", {"--base", schedule}},
                                      {"verify", {"--schedule", schedule, "--total", "64"}}}) {
    Words with = base;
    with.insert(with.end(), more.begin(), more.end());
    const CommandResult differing = run(command, with);
    ASSERT_EQ(differing.code, 0) << differing.err;
    const json differences = json::parse(differing.out).at("differences");
    ASSERT_EQ(differences.size(), 1u) << command;
    EXPECT_EQ(differences[0].at("field"), "generation.max_new_tokens");
    EXPECT_EQ(differences[0].at("here"), 13);
    EXPECT_EQ(differences[0].at("schedule"), 12);
  }
  spec.set_run_id("r-2");
  write_file_atomically(folder / "spec.json", wire::to_json(spec));
  const CommandResult another = run("verify", words);
  EXPECT_EQ(another.code, 3);
  EXPECT_THAT(another.err, Names("r-1", "r-2"));
}

TEST(AblateCommand, ADirectoryThatIsNoRunIsRefusedBeforeAnythingIsScored) {
  const CommandResult result = run("ablate", {"--run", fresh_directory()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names("spec.json"));
}

TEST(LogitsCommand, WritesANumpyArray) {
  const CommandResult result = run_command({"allot", "logits", "--model", kModel, "--ids", "1,15,7"});
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(result.out.size(), 128u + 3 * 99 * sizeof(float));
  EXPECT_EQ(result.out.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_EQ(result.out.substr(10, 60), "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 99), }");
  EXPECT_EQ(result.out[127], '\n');
  // Causal: the first rows do not know the last token.
  const CommandResult other = run_command({"allot", "logits", "--model", kModel, "--ids", "1,15,8"});
  std::vector<float> rows(3 * 99), other_rows(3 * 99);
  std::memcpy(rows.data(), result.out.data() + 128, rows.size() * sizeof(float));
  std::memcpy(other_rows.data(), other.out.data() + 128, other_rows.size() * sizeof(float));
  for (size_t i = 0; i < 2 * 99; ++i) EXPECT_NEAR(rows[i], other_rows[i], 1e-4) << i;
  EXPECT_NE(rows[2 * 99], other_rows[2 * 99]);
}

TEST(LogitsCommand, IdsThatAreNoneAreNamed) {
  EXPECT_THAT(run_command({"allot", "logits", "--model", kModel, "--ids", "1,x"}).err,
              Names("--ids", 1, "\"x\""));
  EXPECT_THAT(run_command({"allot", "logits", "--model", kModel, "--ids", "1,100"}).err,
              Names("token id", 100));
}

}  // namespace
}  // namespace allot::app
