// The built tools with the embedded model: the whole loop with real replies, and what may end in its middle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "aggregator/run_data.h"
#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "episode/samples.h"
#include "evaluation/step_times.h"
#include "model/model_config.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelCommands : public ::testing::Test {
 protected:
  ModelCommands() : run_(fresh_directory() / "run") {}

  std::vector<std::string> tune() const {
    const std::string model = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
    return {"allot", "tune", "--model", model, "--data", model + "/train.jsonl", "--heldout",
            model + "/heldout.jsonl", "--run", run_.string(), "--total", "64", "--estimator", "sys",
            "--episodes", "20", "--questions", "4", "--heldout-questions", "12", "--max-new-tokens", "96",
            "--preflight", "16",
            // So few replies at once that the run is long enough to be disturbed.
            "--max-sequences", "8"};
  }

  static pid_t process_in(const std::optional<std::string>& line) {
    EXPECT_TRUE(line.has_value());
    return line ? std::stoi(line->substr(line->rfind(' ') + 1)) : 0;
  }

  void expect_whole_run() const {
    const auto run = aggregator::read_run(run_);
    EXPECT_EQ(run.stage, "finished");
    std::set<int64_t> learned;
    for (const auto& row : aggregator::episode_rows(run_, "learn"))
      EXPECT_TRUE(learned.insert(row.episode).second) << row.episode;
    EXPECT_EQ(learned.size(), 20u);
    for (const auto& score : run.scores) EXPECT_EQ(score.scores.size(), 12u) << score.label;
  }

  std::filesystem::path run_;
};

TEST_F(ModelCommands, TuneLearnsVerifiesAndExportsWithDenseAheadOfUniform) {
  const auto result = run_command(tune());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  const auto schedule = read_schedule_file(run_ / "schedule.json");
  EXPECT_EQ(schedule.conditions.model.id, "tiny-gsm");
  EXPECT_EQ(schedule.schedule.total(), 64);
  EXPECT_GE(schedule.evaluation.dense->correct, 11);
  EXPECT_LE(schedule.evaluation.uniform->correct, 8);
}

TEST_F(ModelCommands, EvalAndGenerateProveWhatTheyExecuted) {
  const std::string model = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
  std::filesystem::create_directories(run_);
  const std::string schedule = (run_ / "schedule.json").string(),
                    executed = (run_ / "executed.json").string();
  ScheduleFile file;
  file.conditions.model = model::identify_model(model);
  file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  file.conditions.attention = {.estimator = kernels::Estimator::kJoint};
  file.conditions.generation.max_new_tokens = 24;
  file.schedule.samples = {kExactLayer, 7, 2, 2, 6, 2, 2, 5};
  file.total = file.schedule.total();
  file.run_id = "by hand";
  file.tool_version = "0.1.0";
  write_schedule_file(schedule, file);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"allot", "eval", "--model", model, "--data", model + "/heldout.jsonl", "--limit", "2"},
           {"allot", "generate", "--model", model, "--prompt", "Ann has 3 apples."}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--schedule", schedule, "--executed-out", executed});
    ASSERT_EQ(run_command(all).code, 0) << words[1];
    const auto verdict = run_command({"allot", "verify", "--executed", executed, "--run", run_.string()});
    EXPECT_EQ(verdict.code, 0) << verdict.out << verdict.err;
    EXPECT_THAT(verdict.out, HasSubstr("\nexecuted as asked\n"));
    EXPECT_THAT(verdict.out, Not(HasSubstr("not shown"))) << "rows and hashes are known";
    std::filesystem::remove(executed);
  }
}

TEST_F(ModelCommands, KillingWorkerAndAggregatorInTheMiddleLosesNothing) {
  RunningCommand command(tune());
  const pid_t aggregator = process_in(command.error_line_with("aggregator started"));
  const pid_t worker = process_in(command.error_line_with("worker-1 started"));
  ASSERT_TRUE(command.error_line_with("reward"));  // the first episode is told
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(command.error_line_with("worker-1 started"));
  ::kill(aggregator, SIGKILL);
  const auto result = command.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Names("again"));
  expect_whole_run();
}

TEST_F(ModelCommands, InterruptedTuneGoesOnByTheSameCommand) {
  {
    RunningCommand command(tune());
    ASSERT_TRUE(command.error_line_with("reward"));
    command.send_signal(SIGINT);
    EXPECT_EQ(command.wait().code, 130);
  }
  const auto before = aggregator::episode_rows(run_);
  ASSERT_FALSE(before.empty());
  const auto result = run_command(tune());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  const auto after = aggregator::episode_rows(run_);
  for (size_t at = 0; at < before.size(); ++at) {
    EXPECT_EQ(after[at].episode, before[at].episode);
    EXPECT_EQ(after[at].reward, before[at].reward);
  }
}

// A directory that has a config.json and nothing else.
class ConfigOnlyCommands : public ::testing::Test {
 protected:
  ConfigOnlyCommands() : model_(fresh_directory()) {
    std::filesystem::copy(
        std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/parity/qwen3_rope_bias/config.json",
        model_ / "config.json");
  }
  std::filesystem::path model_;
};

TEST_F(ConfigOnlyCommands, BenchDecodeMeasuresRandomWeightsInTheDTypeAskedFor) {
  const auto result = run_command({"allot", "bench", "decode", "--model", model_.string(), "--random-weights",
                                   "7", "--dtype", "bfloat16", "--prompts", "3", "--prompt-tokens", "9",
                                   "--new-tokens", "4", "--repetitions", "1", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"random_weights\":7,\"dtype\":\"bfloat16\",\"attention\":\"dense\""));
  EXPECT_THAT(result.out, HasSubstr("\"attention\":\"joint 8\""));
  EXPECT_THAT(result.out, HasSubstr("\"weights\":\"dtype\",\"step_weight_bytes\":76800,"));
  EXPECT_THAT(result.out, HasSubstr("\"prompts\":3,\"prompt_tokens\":9,\"new_tokens\":4"));
  EXPECT_THAT(result.out, Not(Names("float32")));
  EXPECT_THAT(result.out, HasSubstr("\"decode_steps\":3,\"step_milliseconds\":{\"median\":"));
}

TEST_F(ConfigOnlyCommands, BenchArrivalsHasARowForEachChunk) {
  const auto bench = [&](const std::string& chunks) {
    return run_command({"allot",
                        "bench",
                        "arrivals",
                        "--model",
                        model_.string(),
                        "--random-weights",
                        "7",
                        "--replies",
                        "2",
                        "--reply-prompt-tokens",
                        "5",
                        "--reply-tokens",
                        "12",
                        "--prompt-tokens",
                        "60,90",
                        "--arrivals",
                        "3",
                        "--every",
                        "0.001",
                        "--answer-tokens",
                        "2",
                        "--chunked-prefill",
                        chunks,
                        "--json"});
  };
  const auto result = bench("0,16");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"chunked_prefill\":null,\"between_tokens_milliseconds\":{\"median\":"));
  EXPECT_THAT(result.out, HasSubstr("\"chunked_prefill\":16,\"between_tokens_milliseconds\":{\"median\":"));
  EXPECT_THAT(result.out, HasSubstr("\"prompt_tokens\":[60,90]"));
  EXPECT_THAT(result.out, HasSubstr("\"computed_prompt_tokens\":210"));
  const auto not_a_number = bench("16,many");
  EXPECT_EQ(not_a_number.code, 2);
  EXPECT_THAT(not_a_number.err, Names("--chunked-prefill", "many", 0));
  const auto too_few = bench("1");
  EXPECT_EQ(too_few.code, 1);
  EXPECT_THAT(too_few.err, Names("chunked_prefill_tokens", 1, 2));
}

TEST_F(ModelCommands, ServeRefusesChunksThatAPassCannotHaveBeforeItLoadsTheModel) {
  const std::string model = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
  for (const int tokens : {1, 2049}) {
    const auto refused = run_command({"allot", "serve", "--model", model, "--address", "127.0.0.1:*",
                                      "--chunked-prefill", std::to_string(tokens)});
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, Names("--chunked-prefill", tokens, 2, 2048, "cpu"));
  }
}

TEST_F(ConfigOnlyCommands, BenchDecodeTimesStepsAfterPromptsThatAreNotComputed) {
  const auto result = run_command({"allot",
                                   "bench",
                                   "decode",
                                   "--model",
                                   model_.string(),
                                   "--random-weights",
                                   "7",
                                   "--dtype",
                                   "bfloat16",
                                   "--attention",
                                   "sampled",
                                   "--cache-fill",
                                   "random",
                                   "--prompts",
                                   "3",
                                   "--max-sequences",
                                   "2",
                                   "--prompt-tokens",
                                   "90",
                                   "--new-tokens",
                                   "4",
                                   "--temperature",
                                   "0.6",
                                   "--top-p",
                                   "0.95",
                                   "--repetition-penalty",
                                   "1.1",
                                   "--repetitions",
                                   "1",
                                   "--warm-ups",
                                   "0",
                                   "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\"max_sequences\":2,\"prefill\":\"sampled\",\"cache_fill\":\"random\","
                                    "\"temperature\":0.6,\"top_p\":0.95,\"repetition_penalty\":1.1"));
  EXPECT_THAT(result.out, HasSubstr("\"prefill_tokens_per_second\":null"));
  EXPECT_THAT(result.out, HasSubstr("\"decode_steps\":8"));
  EXPECT_THAT(result.out, Not(HasSubstr("dense")));
}

TEST_F(ModelCommands, BenchScheduleTimesDecodeStepsOfTheRunsScheduleForItsReport) {
  ASSERT_EQ(run_command(tune()).code, 0);
  EXPECT_EQ(run_command({"allot", "report", "--run", run_.string()}).code, 0);
  const auto result = run_command({"allot", "bench", "schedule", "--run", run_.string(), "--context",
                                   "128,32,100000000", "--steps", "3", "--sequences", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, Names("2 sequences", "cpu", "dense us", "schedule us", "step-times.json"));
  EXPECT_THAT(result.err, Names("contexts above 128", "positions"));
  const evaluation::StepTimes times = evaluation::read_step_times(run_ / "step-times.json");
  ASSERT_EQ(times.contexts.size(), 2u);
  EXPECT_EQ(times.contexts[0].context, 32);
  EXPECT_EQ(times.contexts[1].context, 128);
  EXPECT_GT(times.contexts[1].schedule.median, 0);
  EXPECT_EQ(times.schedule.samples, aggregator::read_run(run_).recommended);
  ASSERT_EQ(run_command({"allot", "report", "--run", run_.string()}).code, 0);
  EXPECT_THAT(read_file(run_ / "report.html"), HasSubstr("Time of a decode step"));
  EXPECT_EQ(
      run_command({"allot", "bench", "schedule", "--run", run_.string(), "--context", "100000000"}).code, 2);
  // Without lengths: those that the model has positions for.
  ASSERT_EQ(run_command({"allot", "bench", "schedule", "--run", run_.string(), "--steps", "2"}).code, 0);
  EXPECT_FALSE(evaluation::read_step_times(run_ / "step-times.json").contexts.empty());
}

TEST_F(ConfigOnlyCommands, BenchDecodeRefusesAPeerThatDoesOtherWork) {
  for (const char* peer : {"--peer-python", "--peer-vllm"}) {
    const auto result = run_command({"allot", "bench", "decode", "--model", model_.string(), peer, "python3",
                                     "--cache-fill", "random", "--device", "cuda"});
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, Names(peer, "--cache-fill random"));
  }
  const auto on_cpu =
      run_command({"allot", "bench", "decode", "--model", model_.string(), "--peer-vllm", "python3"});
  EXPECT_EQ(on_cpu.code, 2);
  EXPECT_THAT(on_cpu.err, Names("--peer-vllm", "--device cuda"));
  const auto on_several = run_command({"allot", "bench", "decode", "--model", model_.string(), "--peer-vllm",
                                       "python3", "--device", "cuda:0-1"});
  EXPECT_EQ(on_several.code, 2);
  EXPECT_THAT(on_several.err, Names("--peer-vllm", "one device", "cuda:0-1"));
}

// A shell stands for Python: what the script is told, and what becomes of what it prints.
class BenchDecodePeer : public ConfigOnlyCommands {
 protected:
  CommandResult bench(const std::string& script, const std::vector<std::string>& more = {}) {
    const auto path = model_ / "peer.sh";
    write_file_atomically(path, script);
    std::vector<std::string> words{"allot",
                                   "bench",
                                   "decode",
                                   "--model",
                                   model_.string(),
                                   "--random-weights",
                                   "7",
                                   "--dtype",
                                   "float32",
                                   "--attention",
                                   "dense",
                                   "--prompts",
                                   "3",
                                   "--prompt-tokens",
                                   "9",
                                   "--new-tokens",
                                   "4",
                                   "--repetitions",
                                   "1",
                                   "--peer-prompts",
                                   "2",
                                   "--peer-python",
                                   "/bin/sh",
                                   "--peer-script",
                                   path.string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words);
  }
};

TEST_F(BenchDecodePeer, GetsTheWorkAndStandsBesideWithItsConditions) {
  const std::string script = "echo \"$@\" > '" + (model_ / "arguments").string() + "'\n" +
                             R"sh(echo 'a warning' >&2
echo '{"seconds": 9}'
echo '{"seconds": 2.0, "prefill_seconds": 0.5, "fastest_seconds": 1.5, "slowest_seconds": 3,
"conditions": {}}'
echo '{"seconds": 2.0, "prefill_seconds": 0.5, "fastest_seconds": 1.5, "slowest_seconds": 3, "conditions": {"library": "1.2", "graphs": 4}}'
echo 'last words'
)sh";
  const auto json = bench(script, {"--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_THAT(read_file(model_ / "arguments"),
              Names(model_, "--dtype float32", "--device cpu", "--prompts 2", "--prompt-tokens 9",
                    "--new-tokens 4", "--repetitions 1", "--max-sequences 256", "--random-weights 7"));
  const auto row = nlohmann::json::parse(json.out.substr(0, json.out.find('\n')));
  EXPECT_EQ(row.at("engine"), "hugging face");
  EXPECT_EQ(row.at("prompts"), 2);
  EXPECT_EQ(row.at("decode_seconds"), 1.5);
  EXPECT_EQ(row.at("slowest_seconds"), 3);
  EXPECT_EQ(row.at("new_tokens_per_second"), 4);
  EXPECT_EQ(row.at("conditions").at("graphs"), 4);
  const auto table = bench(script);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, Names("times hugging face", "hugging face: library 1.2, graphs 4", "1.500..3.000"));
}

TEST_F(BenchDecodePeer, ThatFailsOrPrintsNoTimingEndsTheCommandWithItsLastLine) {
  const auto failed = bench("echo out of memory; exit 3");
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, Names("peer.sh", "code 3", "out of memory"));
  const auto silent = bench("echo '{\"seconds\": 2}'; echo done");
  EXPECT_EQ(silent.code, 1);
  EXPECT_THAT(silent.err, Names("peer.sh", "no timing", "done"));
}

TEST_F(ConfigOnlyCommands, BenchDecodeProfilesKernelsOfACudaDeviceOnly) {
  const auto result = run_command({"allot", "bench", "decode", "--model", model_.string(), "--profile"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("--profile", "--device cuda"));
}

TEST(DevicesCommand, ListsTheCpuAndTheGpusOrWhyThereAreNone) {
  const auto lines = run_command({"allot", "devices"});
  ASSERT_EQ(lines.code, 0) << lines.err;
  EXPECT_EQ(lines.err, "");
  EXPECT_THAT(lines.out, ContainsRegex("^cpu     [0-9]+ core"));
  const auto answer = run_command({"allot", "devices", "--json"});
  ASSERT_EQ(answer.code, 0) << answer.err;
  const auto json = nlohmann::json::parse(answer.out);
  const auto& devices = json.at("devices");
  EXPECT_EQ(devices.at(0).at("device"), "cpu");
  EXPECT_EQ(devices.size() == 1, json.at("no_cuda_because") != "");
  if (devices.size() == 1) {
    EXPECT_THAT(lines.out, Names("CUDA", json.at("no_cuda_because").get<std::string>()));
  }
  for (size_t at = 1; at < devices.size(); ++at) {
    EXPECT_EQ(devices[at].at("device"), "cuda:" + std::to_string(at - 1));
    EXPECT_THAT(lines.out, HasSubstr(devices[at].at("product").get<std::string>()));
    EXPECT_GT(devices[at].at("memory_bytes").get<int64_t>(), int64_t{1} << 30);
  }
}

TEST_F(ConfigOnlyCommands, AnUnknownDeviceIsWrongUsage) {
  for (const char* command :
       {"analyze", "bench", "calibrate", "eval", "logits", "tune", "worker", "verify", "ablate"}) {
    const auto result = run_command({"allot", command, "--device", "tpu"});
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_THAT(result.err, Names("--device", "cpu", "cuda", "cuda:N")) << command;
  }
}

TEST_F(ConfigOnlyCommands, LogitsOfRandomWeightsFollowTheSeed) {
  const auto logits = [&](const char* seed) {
    const auto file = model_ / "logits.npy";
    const auto result =
        run_command({"allot", "logits", "--model", model_.string(), "--ids", "1,5,7", "--schedule",
                     "uniform:2", "--random-weights", seed, "--out", file.string()});
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(file);
  };
  EXPECT_EQ(logits("7"), logits("7"));
  EXPECT_NE(logits("7"), logits("8"));
}

TEST_F(ConfigOnlyCommands, LogitsWithAnAdapterAreThoseOfTheMergedWeights) {
  const std::string data = std::string(ALLOT_SOURCE_DIR) + "/tests/data/";
  const auto logits = [&](const std::vector<std::string>& more) {
    const std::string file = model_ / "logits.npy";
    std::vector<std::string> words = {"allot", "logits", "--model", data + "parity/llama_head64",
                                      "--ids", "1,5,7",  "--out",   file};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_command(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(file);
  };
  EXPECT_EQ(logits({"--adapter", data + "adapter/plain", "--threads", "1"}),
            logits({"--adapter", data + "adapter/plain", "--threads", "2"}));
  EXPECT_NE(logits({"--adapter", data + "adapter/plain"}), logits({}));
}

// Each command that has the option gives it to the engine, which knows what the device can do.
TEST_F(ConfigOnlyCommands, WeightsOfEightBitsAreRefusedOnTheCpuAndOtherNamesAltogether) {
  const std::string trained = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";
  std::vector<std::vector<std::string>> commands{
      {"allot", "logits", "--model", model_.string(), "--ids", "1", "--out", "unused", "--random-weights",
       "7"},
      {"allot", "bench", "decode", "--model", model_.string(), "--random-weights", "7"},
      {"allot", "generate", "--model", trained, "--prompt", "a"},
      {"allot", "serve", "--model", trained, "--address", "127.0.0.1:*"},
      {"allot", "analyze", "fidelity", "--model", trained, "--data", trained + "/heldout.jsonl", "--limit",
       "1"}};
  for (std::vector<std::string>& words : commands) {
    words.insert(words.end(), {"--dtype", "bfloat16", "--weights", "fp8-logits"});
    const auto refused = run_command(words);
    EXPECT_EQ(refused.code, 1) << words.at(1);
    EXPECT_THAT(refused.err, Names("fp8-logits", "cpu", "dtype")) << words.at(1);
    words.back() = "int4";
    const auto unknown = run_command(words);
    EXPECT_EQ(unknown.code, 2) << words.at(1);
    EXPECT_THAT(unknown.err, Names("--weights", "int4", "fp8", "fp8-logits")) << words.at(1);
  }
}

TEST_F(ConfigOnlyCommands, AnAdapterAndWhatCannotHaveOneExcludeEachOther) {
  const std::string adapter = std::string(ALLOT_SOURCE_DIR) + "/tests/data/adapter/plain";
  const auto refused = [&](std::vector<std::string> words, const char* other) {
    words.insert(words.end(), {"--model", model_.string(), "--adapter", adapter});
    const auto result = run_command(words);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, Names("--adapter", adapter, other));
  };
  refused({"allot", "logits", "--ids", "1", "--out", "unused", "--random-weights", "7"}, "--random-weights");
  refused({"allot", "bench", "decode", "--random-weights", "7"}, "--random-weights");
  refused({"allot", "bench", "decode", "--peer-python", "python3"}, "--peer-python");
}

TEST_F(ConfigOnlyCommands, LogitsWithoutRandomWeightsAndQuestionsSayWhatIsMissing) {
  const auto logits =
      run_command({"allot", "logits", "--model", model_.string(), "--ids", "1", "--out", "unused"});
  EXPECT_EQ(logits.code, 1);
  EXPECT_THAT(logits.err, Names(model_, "model.safetensors"));
  const std::string data = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm/heldout.jsonl";
  const auto eval = run_command({"allot", "eval", "--model", model_.string(), "--data", data});
  EXPECT_EQ(eval.code, 1);
  EXPECT_THAT(eval.err, Names("tokenizer.json", "missing"));
}

TEST_F(ModelCommands, BenchOfSomethingUnknownIsWrongUsage) {
  const auto result =
      run_command({"allot", "bench", "sleep", "--model", std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("sleep", "decode", "attention"));
}

}  // namespace
}  // namespace allot::app
