// eval, verify, ablate and logits on the embedded model, as people run them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/ablation.h"
#include "evaluation/task.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

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
  for (const char* option :
       {"dtype", "weights", "keys", "temperature", "top-p", "repetition-penalty", "max-new-tokens"}) {
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

// Stratified Bernoulli scores: one sample a feature leaves the answers to chance, eight leave them right.
TEST(EvalCommand, ABitNetWithPackedTernaryWeightsAnswersByBernoulliScores) {
  const auto right = [](const std::string& budget) {
    const std::string model = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm-bitnet";
    const CommandResult result = run_command({"allot",
                                              "eval",
                                              "--model",
                                              model,
                                              "--data",
                                              kData,
                                              "--limit",
                                              "8",
                                              "--max-new-tokens",
                                              "64",
                                              "--estimator",
                                              "exact",
                                              "--score-stage",
                                              "bernoulli-strat",
                                              "--score-budget",
                                              budget,
                                              "--schedule",
                                              "dense",
                                              "--schedule",
                                              "uniform:1",
                                              "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const json scored = json::parse(result.out).at("schedules");
    EXPECT_GE(scored.at(0).at("correct"), 7) << "dense";
    return scored.at(1).at("correct").get<int>();
  };
  EXPECT_LE(right("1"), 3);
  EXPECT_GE(right("8"), 7);
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

// --- verify

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

// Replies of the embedded model are no programs, so they are put into a text of one.
TEST(EvalCommand, RunsCodeOfRepliesWhereThatIsAllowed) {
  const std::filesystem::path directory = fresh_directory();
  json task = json::parse(read_file(std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json"));
  task["name"] = "code";
  task["grade"] = {{"by", "python"},
                   {"program",
                    "import re\nfound = re.findall(r'#### (.*)', r\"\"\"{reply}\"\"\")\n"
                    "assert found and found[0] == '{answer}'\n"}};
  const std::string file = directory / "code.json";
  write_file_atomically(file, task.dump());
  const Words words = {"--limit", "8", "--schedule", "dense", "--schedule", "uniform:2", "--task", file};
  const CommandResult refused = run("eval", words);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, Names("code", "--allow-code-execution"));
  Words allowed = words;
  allowed.emplace_back("--allow-code-execution");
  const CommandResult result = run("eval", allowed);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(" --allow-code-execution "));
  expect_again(result.out);
  allowed.emplace_back("--json");
  const json scores = json::parse(run("eval", allowed).out).at("schedules");
  EXPECT_GE(scores[0].at("correct"), 7);
  EXPECT_LE(scores[1].at("correct"), 3);
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

TEST(VerifyCommand, SaysByHowMuchAndWhatItsQuestionsCouldShow) {
  const Words words = {"--limit", "32", "--estimator", "sys", "--schedule", "29,5,5,5,5,5,5,5"};
  const CommandResult better = run("verify", words);
  ASSERT_EQ(better.code, 0) << better.err;
  EXPECT_THAT(better.err, HasSubstr("32 questions find a difference of 2"));
  EXPECT_THAT(better.out,
              testing::ContainsRegex("\nbetter: 29,5,5,5,5,5,5,5 scores [0-9.]+ points higher than "
                                     "uniform, 95 % interval [0-9.]+ to [0-9.]+\n"));
  const CommandResult worse = run("verify", {"--limit", "32", "--estimator", "sys", "--schedule", "uniform:8",
                                             "--against", "29,5,5,5,5,5,5,5"});
  EXPECT_THAT(worse.out, testing::ContainsRegex("\nworse: uniform:8 scores [0-9.]+ points lower than "
                                                "29,5,5,5,5,5,5,5, 95 % interval [0-9.]+ to [0-9.]+\n"));
}

TEST(VerifyCommand, AScheduleDoesNotDifferFromItself) {
  const CommandResult result =
      run("verify", {"--limit", "8", "--schedule", "uniform:8", "--against", "8,8,8,8,8,8,8,8"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("undecided"));
  EXPECT_THAT(result.out, Names("0 questions", "right only here", "0 there"));
  EXPECT_THAT(result.out, HasSubstr("0 of 8 questions tell them apart, too few"));
  EXPECT_THAT(result.err, HasSubstr("8 questions are too few to find any difference"));
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
