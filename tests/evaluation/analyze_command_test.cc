#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "evaluation/step_times.h"
#include "model/safetensors_writer.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/document.h"
#include "tests/names.h"

namespace allot::app {
namespace {

std::vector<nlohmann::json> rows_of(const CommandResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  std::vector<nlohmann::json> rows;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(AnalyzeCommand, CountsOperationsOfEachEstimator) {
  const std::vector<std::string> words = {"allot", "analyze",   "operations", "--pass",  "prefill", "--keys",
                                          "1000",  "--samples", "16",         "--group", "3"};
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(as_json));
  ASSERT_EQ(rows.size(), 5u);  // scores; values of exact, topk, sys and joint
  EXPECT_EQ(rows[0]["reads"], 2000 * 128);
  EXPECT_EQ(rows[0]["read_bytes"], 2 * 2000 * 128);
  EXPECT_EQ(rows[1]["estimator"], "exact");
  EXPECT_EQ(rows[1]["samples"], nullptr);
  EXPECT_EQ(rows[3]["estimator"], "sys");
  EXPECT_EQ(rows[3]["additions"], 1000 * 16 * 128);
  EXPECT_EQ(rows[3]["multiplications"], 1000 * 128);
  EXPECT_EQ(rows[4]["additions"], 3 * 1000 * 16 * 128);

  const CommandResult text = run_command(words);
  EXPECT_THAT(text.out, Names("3 to a KV head", "joint", 1000 * 16 * 128));
  EXPECT_THAT(run_command({"allot", "analyze", "operations", "--samples", "0"}).err, Names("--samples", 0));
}

TEST(AnalyzeCommand, MeasuresCoverage) {
  const std::vector<std::string> words = {"allot",      "analyze", "coverage",  "--keys", "64,128",
                                          "--head-dim", "16",      "--samples", "4",      "--json"};
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["keys"], 128);
  EXPECT_EQ(rows[1]["heads"], 65536 / 128);
  EXPECT_NEAR(rows[1]["share"], 0.8, 0.02);
  EXPECT_EQ(rows[1]["expected"], 0.8);
  EXPECT_EQ(rows_of(run_command(words)), rows) << "the same seed";
}

TEST(AnalyzeCommand, MeasuresTheVarianceOfEverySpacing) {
  std::vector<std::string> words = {"allot", "analyze",   "variance", "--keys",  "256", "--head-dim",
                                    "8",     "--samples", "4,16",     "--heads", "2",   "--replicates",
                                    "50"};
  EXPECT_THAT(run_command(words).out, Names("iid -1.000", "squared error", "2 heads with 50 estimates"));
  words.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(rows[0]["estimator"], "iid");
  EXPECT_EQ(rows[3]["samples"], 16);
  EXPECT_EQ(rows[5]["estimator"], "sys");
  EXPECT_EQ(rows[5]["squared_error_formula"], nullptr);
  EXPECT_NEAR(rows[1]["squared_error_formula"], rows[0]["squared_error_formula"].get<double>() / 4, 1e-9);
  EXPECT_EQ(rows_of(run_command(words)), rows) << "the same seed";
}

TEST(AnalyzeCommand, MeasuresTails) {
  std::vector<std::string> words = {"allot", "analyze",   "tails", "--keys",  "128", "--head-dim",
                                    "8",     "--samples", "4",     "--heads", "2",   "--replicates",
                                    "50"};
  EXPECT_THAT(run_command(words).out, Names("bound / distance", "0.01", "2 heads with 50 estimates"));
  words.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 9u);
  EXPECT_EQ(rows[0]["delta"], .5);
  EXPECT_EQ(rows[8]["estimator"], "sys");
  EXPECT_LT(rows[2]["quantile"], rows[2]["bound"]);
}

TEST(AnalyzeCommand, MeasuresTiles) {
  std::vector<std::string> words = {"allot", "analyze",   "tiles", "--keys",  "128", "--head-dim",
                                    "8",     "--samples", "4,16",  "--heads", "2",   "--replicates",
                                    "20",    "--tiles",   "16,64"};
  EXPECT_THAT(run_command(words).out, Names("rel. error", "3-4", "flash", "2 heads with 20 estimates"));
  words.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 12u);  // sys, prop, flash; two sizes; two budgets
  EXPECT_EQ(rows[0]["estimator"], "sys");
  EXPECT_EQ(rows[0]["all"]["bias"], nullptr);
  EXPECT_EQ(rows[0]["tiles"], 8);
  EXPECT_EQ(rows[0]["states"], nullptr);
  EXPECT_EQ(rows[8]["estimator"], "flash");
  EXPECT_EQ(rows[8]["all"], nullptr) << "4 samples for 8 tiles";
  EXPECT_EQ(rows[11]["tile"], 64);
  EXPECT_EQ(rows[11]["samples"], 16);
  EXPECT_EQ(rows[11]["all"]["heads"], 2);
  EXPECT_EQ(rows[11]["mass_share"].size(), 2u);
  int heads = 0;
  for (const auto& [name, count] : rows[11]["support_heads"].items()) heads += count.get<int>();
  EXPECT_EQ(heads, 2);
  EXPECT_EQ(rows_of(run_command(words)), rows) << "the same seed";
  words[14] = "0";
  EXPECT_THAT(run_command(words).err, Names("--tiles", 0));
  words[14] = "16";
  words.insert(words.end(), {"--estimators", "joint"});
  EXPECT_THAT(run_command(words).err, Names("joint"));
}

TEST(AnalyzeCommand, DrawsTiles) {
  const TemporaryDirectory directory;
  const std::vector<std::string> words = {"allot",   "analyze",    "tiles",   "--keys", "64",
                                          "--tiles", "16,32",      "--heads", "1",      "--samples",
                                          "8",       "--head-dim", "4",       "--out",  directory.path()};
  EXPECT_THAT(run_command(words).err, Names("tiles_error.svg", "tiles_share_16.svg", "tiles_share_32.svg"));
  EXPECT_THAT(read_file(directory.path() / "tiles_share_32.svg"), Names("<svg", "rows of flash"));
}

// One head of one element; the scores of `keys` are the keys.
std::string write_states(const std::filesystem::path& path, const std::vector<float>& keys, int layers) {
  std::vector<model::TensorHeader> headers;
  const auto count = static_cast<int64_t>(keys.size());
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    headers.push_back({name + ".query", model::TensorDType::kF32, {1, 1}});
    headers.push_back({name + ".key", model::TensorDType::kF32, {1, count, 1}});
    headers.push_back({name + ".value", model::TensorDType::kF32, {1, count, 1}});
  }
  model::SafetensorsWriter writer(path, headers);
  for (int layer = 0; layer < layers; ++layer) {
    // The last layer attends to one key alone.
    const std::vector<float> query = {layer + 1 == layers ? 50.0F : 0.0F};
    writer.write(std::as_bytes(std::span(query)));
    writer.write(std::as_bytes(std::span(keys)));
    writer.write(std::as_bytes(std::span(keys)));
  }
  writer.finish();
  return path;
}

TEST(AnalyzeCommand, StatesOfSeveralTextsAreMeasuredTogether) {
  const TemporaryDirectory directory;
  const std::string one = write_states(directory.path() / "one", {1, 2, 3, 4}, 3);
  const std::string two = write_states(directory.path() / "two", {4, 3, 2, 5}, 3);
  const std::string other = write_states(directory.path() / "other", {1, 2}, 3);
  std::vector<std::string> words = {"allot", "analyze", "tiles", "--samples", "4", "--tiles", "1", "--json"};
  words.insert(words.end(), {"--states", one, "--states", two});
  std::vector<nlohmann::json> rows = rows_of(run_command(words));
  EXPECT_EQ(rows[0]["all"]["heads"], 6);
  EXPECT_EQ(rows[0]["states"], (nlohmann::json{one, two}));
  EXPECT_EQ(rows[0]["score_deviation"], nullptr);
  EXPECT_EQ(rows[0]["support_heads"]["3-4"], 4) << "four keys alike in two layers of each text";
  EXPECT_EQ(rows[0]["support_heads"]["1"], 2);
  words.insert(words.end(), {"--layers", "last"});
  rows = rows_of(run_command(words));
  EXPECT_EQ(rows[0]["all"]["heads"], 2);
  EXPECT_EQ(rows[0]["layers"], "last");
  EXPECT_EQ(rows[0]["support_heads"]["1"], 2);
  words.insert(words.end(), {"--states", other});
  EXPECT_THAT(run_command(words).err, Names("other", 2, 4));
  EXPECT_THAT(run_command({"allot", "analyze", "variance", "--layers", "last"}).err,
              Names("--layers", "--states"));
}

TEST(AnalyzeCommand, MeasuresBernoulliScores) {
  std::vector<std::string> words = {"allot",      "analyze",   "bernoulli", "--keys", "64",
                                    "--head-dim", "32",        "--group",   "2",      "--instances",
                                    "9",          "--budgets", "2,8"};
  EXPECT_THAT(run_command(words).out, Names("bernoulli-strat", "1.000", "groups of 2", "sectors"));
  words.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1]["score_stage"], "bernoulli");
  EXPECT_EQ(rows[3]["score_stage"], "bernoulli-strat");
  EXPECT_EQ(rows[3]["budget"], 8);
  EXPECT_LT(rows[3]["error"], rows[1]["error"]);
}

TEST(AnalyzeCommand, SaysWhatSamplingCanMakeOfADecodeStep) {
  const std::string llama = std::string(ALLOT_SOURCE_DIR) + "/configs/shapes/llama-3.1-8b";
  const std::vector<std::string> words = {"allot", "analyze", "amdahl",     "--model",
                                          llama,   "--keys",  "8192,30000", "--sequences",
                                          "6",     "--json",  "--samples",  "128"};
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["keys"], 30'000);
  EXPECT_NEAR(rows[1]["speedup_of_attention"], 1.26, 0.005) << "S2ANTA paper, section 3.5";
  const double keys = rows[1]["key_bytes"], weights = rows[1]["weight_bytes"];
  const double rest = keys * 4 * 128 / 30'000;
  EXPECT_NEAR(rows[1]["speedup_at_most"], (weights + 2 * keys) / (weights + keys + rest), 1e-9);
  EXPECT_EQ(rows[1]["measured_speedup"], nullptr);
}

TEST(AnalyzeCommand, SaysWhatFewerBitsMakeOfADecodeStep) {
  const std::string llama = std::string(ALLOT_SOURCE_DIR) + "/configs/shapes/llama-3.1-8b";
  const auto row = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"allot",  "analyze", "amdahl", "--model",   llama,
                                      "--keys", "30000",   "--json", "--samples", "128"};
    words.insert(words.end(), more.begin(), more.end());
    return rows_of(run_command(words)).at(0);
  };
  const nlohmann::json usual = row({});
  EXPECT_EQ(usual["weights"], "dtype");
  EXPECT_EQ(usual["key_format"], "dtype");
  EXPECT_EQ(usual["value_format"], "dtype");
  const nlohmann::json fewer =
      row({"--key-format", "high", "--value-format", "fp8", "--weights", "fp8-logits"});
  EXPECT_EQ(fewer["key_format"], "high");
  EXPECT_EQ(fewer["value_format"], "fp8");
  EXPECT_EQ(fewer["key_bytes"].get<int64_t>(), usual["key_bytes"].get<int64_t>() / 256 * 132);
  EXPECT_EQ(2 * fewer["value_bytes"].get<int64_t>(), usual["value_bytes"].get<int64_t>());
  EXPECT_LT(fewer["weight_bytes"].get<double>(), 0.51 * usual["weight_bytes"].get<double>());
}

TEST(AnalyzeCommand, SaysFromWhichContextOnAMeasuredScheduleTakesLessTime) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "step-times.json";
  evaluation::StepTimes times;
  times.conditions.model = evaluation::example_model();
  times.conditions.model.layers = 32;
  times.conditions.model.num_q_heads = 32;
  times.conditions.model.num_kv_heads = 8;
  times.conditions.model.head_dim = 128;
  times.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  times.tool_version = "0.1.0";
  times.device = "cuda:0 GPU";
  times.sequences = 6;
  times.steps = 160;
  times.schedule.samples.assign(32, 8);
  // Faster at 1024 by the medians alone.
  times.contexts = {{1024, {800, 790, 810}, {795, 780, 805}},
                    {2048, {900, 890, 910}, {700, 690, 710}},
                    {4096, {1000, 990, 1010}, {500, 490, 510}}};
  write_file_atomically(file, evaluation::format_step_times(times));
  const std::string llama = std::string(ALLOT_SOURCE_DIR) + "/configs/shapes/llama-3.1-8b";
  const std::vector<std::string> words = {"allot", "analyze",      "amdahl", "--model",
                                          llama,   "--step-times", file};
  const CommandResult text = run_command(words);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, Names("6 sequences", "8 samples", "measured", "from 2048 keys on"));
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(as_json));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2]["measured_speedup"], 2.0);
  EXPECT_EQ(rows[2]["sequences"], 6);

  times.contexts.back().schedule = times.contexts.back().dense;
  write_file_atomically(file, evaluation::format_step_times(times));
  EXPECT_THAT(run_command(words).out, Names("at none", 4096));
  std::vector<std::string> with_keys = words;
  with_keys.insert(with_keys.end(), {"--keys", "5"});
  EXPECT_THAT(run_command(with_keys).err, Names("--keys", "--step-times"));
  times.conditions.model.layers = 31;
  times.schedule.samples.pop_back();
  write_file_atomically(file, evaluation::format_step_times(times));
  EXPECT_THAT(run_command(words).err, Names("step-times.json", 31, 32));
}

}  // namespace
}  // namespace allot::app
