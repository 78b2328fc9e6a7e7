// `allot generate` with the embedded model: what it replies, and under which schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "app/files/export_formats.h"
#include "base/file.h"
#include "base/json.h"
#include "model/model_config.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class GenerateCommand : public ::testing::Test {
 protected:
  static Words words(const std::string& command, const std::filesystem::path& model, const Words& more) {
    Words all = {"allot", command, "--model", model.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  CommandResult generate(const Words& more, const std::string& input = "") const {
    return run_command(words("generate", model_, more), input);
  }
  // The first questions of the held-out file, and one of them.
  static std::string questions(int count) {
    std::istringstream in(read_file(original() / "heldout.jsonl"));
    std::string text, line;
    for (int i = 0; i < count && std::getline(in, line); ++i) text += line + "\n";
    return text;
  }
  static std::filesystem::path original() {
    return std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
  }
  // A copy of the model whose config.json carries 3 samples in every layer.
  std::filesystem::path carrying() const {
    const auto directory = fresh_directory() / "carrying";
    std::filesystem::create_directories(directory);
    for (const char* file :
         {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"})
      std::filesystem::copy(original() / file, directory / file);
    ScheduleFile file;
    file.conditions.model = model::identify_model(original());
    file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
    file.conditions.attention = {.estimator = kernels::Estimator::kIid};
    file.conditions.generation.max_new_tokens = 50;
    file.schedule = policy::uniform_schedule(file.conditions.model.layers, 3);
    file.total = file.schedule.total();
    file.run_id = "the-run";
    file.tool_version = "0.1.0";
    write_file_atomically(directory / "config.json",
                          export_schedule({.schedule = file, .model = original()}, "hf-config"));
    return directory;
  }

  std::filesystem::path model_ = original();
};

TEST_F(GenerateCommand, RepliesAreThoseOfEvalForTheSameLinesScheduleAndSeed) {
  const auto directory = fresh_directory();
  write_file_atomically(directory / "data.jsonl", questions(6));
  const Words under = {"--schedule", "uniform:2", "--estimator", "sys", "--seed", "7"};
  Words eval = {"--data", (directory / "data.jsonl").string(), "--details",
                (directory / "details.jsonl").string()};
  eval.insert(eval.end(), under.begin(), under.end());
  const auto scored = run_command(words("eval", model_, eval));
  ASSERT_EQ(scored.code, 0) << scored.err;
  Words from_file = {"--file", (directory / "data.jsonl").string(), "--field", "question"};
  from_file.insert(from_file.end(), under.begin(), under.end());
  const auto generated = generate(from_file);
  ASSERT_EQ(generated.code, 0) << generated.err;
  std::istringstream details(read_file(directory / "details.jsonl")), rows(generated.out);
  std::string detail, row;
  int lines = 0;
  for (; std::getline(details, detail); ++lines) {
    ASSERT_TRUE(std::getline(rows, row));
    EXPECT_EQ(Json::parse(row)["reply"], Json::parse(detail)["reply"]);
    EXPECT_EQ(Json::parse(row)["line"], lines);
  }
  EXPECT_EQ(lines, 6);
}

TEST_F(GenerateCommand, OnePromptIsTheReplyAlone) {
  const std::string question = Json::parse(questions(1))["question"];
  const auto result = generate({"--prompt", question});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("#### 8\n"));
  EXPECT_THAT(result.err, Names("schedule: dense"));
  const auto row = Json::parse(generate({"--json"}, question + "\n").out);
  EXPECT_EQ(row["reply"].get<std::string>() + "\n", result.out);
  EXPECT_EQ(row["finish"], "eos");
}

TEST_F(GenerateCommand, APromptThatIsTooLongIsARowAndTheOthersAreAnswered) {
  const auto result = generate({"--max-new-tokens", "4"}, std::string(2000, 'a') + "\nTom has 3 apples.\n");
  EXPECT_EQ(result.code, 1);
  std::istringstream rows(result.out);
  std::string first, second;
  std::getline(rows, first);
  std::getline(rows, second);
  EXPECT_THAT(Json::parse(first)["error"].get<std::string>(), Names(1024));
  EXPECT_EQ(Json::parse(second)["output_tokens"], 4);
}

TEST_F(GenerateCommand, TheScheduleThatTheDirectoryCarriesRunsAndIsNamed) {
  model_ = carrying();
  const std::string prompt = "Tom has 3 apples and buys 4 more. How many apples does he have now?";
  const auto own = generate({"--prompt", prompt, "--seed", "5"});
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_THAT(own.err, Names("config.json", "the-run", 24, "iid", 50));
  EXPECT_THAT(own.err, Not(HasSubstr("does not run")));
  const Words same = {"--prompt",    prompt, "--seed",           "5", "--schedule", "uniform:3",
                      "--estimator", "iid",  "--max-new-tokens", "50"};
  const auto named = generate(same);
  EXPECT_EQ(named.out, own.out);
  EXPECT_THAT(named.err, Names("the-run", "does not run here"));
  const auto dense =
      generate({"--prompt", prompt, "--schedule", "dense", "--estimator", "iid", "--seed", "5"});
  EXPECT_NE(dense.out, own.out) << "3 samples are too few for this model";
  EXPECT_THAT(dense.err, Names("the-run", "does not run here"));
}

TEST_F(GenerateCommand, EvalTakesTheScheduleThatTheDirectoryCarriesWhereNoneIsNamed) {
  model_ = carrying();
  const auto data = model_.parent_path() / "data.jsonl";
  write_file_atomically(data, questions(4));
  const auto own = run_command(words("eval", model_, {"--data", data.string(), "--json"}));
  ASSERT_EQ(own.code, 0) << own.err;
  const Json json = Json::parse(own.out);
  EXPECT_EQ(json["schedules"][0]["schedule"], "config");
  EXPECT_EQ(json["schedules"][0]["total"], 24);
  EXPECT_EQ(json["conditions"]["attention"]["estimator"], "iid");
  const auto dense =
      run_command(words("eval", model_, {"--data", data.string(), "--schedule", "dense", "--json"}));
  EXPECT_EQ(Json::parse(dense.out)["schedules"][0]["schedule"], "dense");
  EXPECT_THAT(dense.err, Names("the-run", "does not run here"));
}

// Exporting adds a key to config.json, which changes its hash.
TEST_F(GenerateCommand, ADirectoryThatCarriesAScheduleRunsTheFileThatItWasExportedFrom) {
  model_ = carrying();
  ScheduleFile file;
  file.conditions.model = model::identify_model(original());
  file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  file.schedule = policy::uniform_schedule(file.conditions.model.layers, 2);
  file.total = file.schedule.total();
  file.run_id = "the-run";
  file.tool_version = "0.1.0";
  const std::string path = model_.parent_path() / "schedule.json";
  write_schedule_file(path, file);
  const auto result =
      generate({"--prompt", "Tom has 3 apples.", "--schedule", path, "--max-new-tokens", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  file.conditions.model.weights_fingerprint = std::string(64, 'a');
  write_schedule_file(path, file);
  const auto other = generate({"--prompt", "Tom has 3 apples.", "--schedule", path});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("weights_fingerprint"));
}

TEST_F(GenerateCommand, CommandsThatMeasureSayThatTheScheduleOfTheDirectoryDoesNotRun) {
  model_ = carrying();
  const auto data = model_.parent_path() / "data.jsonl";
  write_file_atomically(data, questions(2));
  const auto bench = run_command(
      words("bench", model_,
            {"--prompts", "1", "--prompt-tokens", "4", "--new-tokens", "2", "--dtype", "float32"}));
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.err, Names("the-run", "does not run here", "--samples"));
  const auto analyzed = run_command(
      words("analyze", model_,
            {"--what", "fidelity", "--task", "gsm8k", "--data", data.string(), "--samples", "2"}));
  EXPECT_EQ(analyzed.code, 0) << analyzed.err;
  EXPECT_THAT(analyzed.err, Names("the-run", "does not run here"));
  const auto logits = run_command(words("logits", model_, {"--ids", "1,2", "--schedule", "uniform:2"}));
  EXPECT_THAT(logits.err, Names("the-run", "does not run here"));
}

// The embedded model has no chat template; the copy's writes the first message as style plain does.
TEST_F(GenerateCommand, APromptCanBeAMessageAfterASystemMessage) {
  const std::string question = "Tom has 3 apples and buys 4 more. How many apples does he have now?";
  const auto plain = generate({"--prompt", question, "--prompt-style", "plain"});
  const auto refused = generate({"--prompt", question, "--prompt-style", "plain", "--system", "a"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, Names("--system", "plain", "message"));
  const auto directory = fresh_directory() / "chats";
  std::filesystem::copy(original(), directory);
  write_file_atomically(directory / "chat_template.jinja",
                        "{{ bos_token }}{{ messages[0].content }}{{ '\\n' }}");
  model_ = directory;
  const auto message = generate({"--prompt", question, "--prompt-style", "message"});
  ASSERT_EQ(message.code, 0) << message.err;
  EXPECT_EQ(message.out, plain.out);
  const auto after = generate({"--prompt", "ignored", "--prompt-style", "message", "--system", question});
  EXPECT_EQ(after.out, plain.out);
}

TEST_F(GenerateCommand, InputsThatExcludeEachOtherAreWrongUsage) {
  EXPECT_EQ(generate({"--prompt", "a", "--file", "b"}).code, 2);
  EXPECT_EQ(generate({"--file", "/no/such/file"}).code, 1);
}

}  // namespace
}  // namespace allot::app
