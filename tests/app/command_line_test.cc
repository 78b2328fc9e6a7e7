// The built `allot` from outside: what needs no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/hub_snapshot.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// One line on standard error, of `command` and naming what it should; nothing on standard output.
void expect_one_error(const CommandResult& result, int code, const std::string& command,
                      const NamesMatcher& names) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_THAT(result.err, AllOf(StartsWith(command + ": "), names));
  EXPECT_THAT(result.err, EndsWith("\n"));
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(CommandLine, HelpListsEveryCommandWithOneLine) {
  const auto result = run_command({"allot", "--help"});
  EXPECT_EQ(result.code, 0);
  for (const char* command :
       {"tune",     "aggregator", "worker",    "status", "control",    "eval",   "generate", "serve",
        "verify",   "analyze",    "calibrate", "ablate", "export",     "import", "report",   "inspect",
        "tokenize", "logits",     "grade",     "bench",  "completion", "man",    "compare",  "contexts"}) {
    EXPECT_THAT(result.out, HasSubstr("\n  " + std::string(command) + " ")) << command;
  }
}

TEST(CommandLine, VersionIsOneLine) {
  const auto result = run_command({"allot", "--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, ::testing::MatchesRegex("allot [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(CommandLine, NoCommandIsWrongUsage) {
  const auto result = run_command({"allot"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("Usage: allot COMMAND"));
}

TEST(CommandLine, UnknownCommandNamesTheNearest) {
  expect_one_error(run_command({"allot", "tnue"}), 2, "allot", Names("tnue", "tune"));
  expect_one_error(run_command({"allot", "zzzzzzzz"}), 2, "allot", Names("zzzzzzzz", "allot --help"));
}

TEST(CommandLine, EveryTorchFreeCommandHasHelpWithAnExample) {
  for (const char* command : {"tune", "aggregator", "status", "inspect"}) {
    const auto result = run_command({"allot", command, "--help"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("Example: allot " + std::string(command)));
  }
}

TEST(CommandLine, LearnersAreRehearsedOnTheLandscapesByTheirNames) {
  const auto result = run_command({"allot", "bench", "tuner", "--family", "tiny", "--method", "pairs",
                                   "--episodes", "250", "--instances", "2", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto row = nlohmann::json::parse(result.out);
  EXPECT_EQ(row.at("family"), "tiny");
  const auto& last = row.at("checkpoints").back();
  EXPECT_EQ(last.at("episodes"), 250);
  EXPECT_GT(last.at("least"), 0.95);
  EXPECT_NE(last.at("values").at(0), last.at("values").at(1)) << "an instance is a seed";
  expect_one_error(run_command({"allot", "bench", "tuner", "--family", "flat"}), 2, "allot bench",
                   Names("flat", "middle", "published", "steep", "tiny"));
}

TEST(CommandLine, MissingModelRuntimeIsNamedWithWhatToDo) {
  const auto directory = fresh_directory();
  std::filesystem::copy_file(std::string(ALLOT_BIN_DIR) + "/allot", directory / "allot");
  expect_one_error(run_command({(directory / "allot").string(), "worker"}), 1, "allot worker",
                   Names(directory / "allot-model"));
}

TEST(CommandLine, ModelCommandIsHandedOverWithItsArguments) {
  const auto directory = fresh_directory();
  std::filesystem::copy_file(std::string(ALLOT_BIN_DIR) + "/allot", directory / "allot");
  write_file_atomically(directory / "allot-model", "#!/bin/sh\necho \"$@\"\nexit 7\n");
  std::filesystem::permissions(directory / "allot-model", std::filesystem::perms::owner_all);
  const auto result = run_command({(directory / "allot").string(), "worker", "--threads", "2"});
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(result.out, "worker --threads 2\n");
}

TEST(CommandLine, MissingCudaKernelsAreNamedWithTheBuildOption) {
  const auto directory = fresh_directory();
  std::filesystem::copy_file(std::string(ALLOT_BIN_DIR) + "/allot", directory / "allot");
  const auto result = run_command({(directory / "allot").string(), "bench", "attention"});
  expect_one_error(result, 1, "allot bench", Names(directory / "allot-bench", "ALLOT_WITH_CUDA"));
}

TEST(CommandLine, AttentionBenchmarkIsHandedOverToItsOwnExecutable) {
  const auto directory = fresh_directory();
  std::filesystem::copy_file(std::string(ALLOT_BIN_DIR) + "/allot", directory / "allot");
  for (const char* name : {"allot-bench", "allot-model"}) {
    write_file_atomically(directory / name, "#!/bin/sh\necho \"$(basename \"$0\") $@\"\n");
    std::filesystem::permissions(directory / name, std::filesystem::perms::owner_all);
  }
  const std::string allot = (directory / "allot").string();
  EXPECT_EQ(run_command({allot, "bench", "attention", "--json"}).out, "allot-bench bench attention --json\n");
  EXPECT_EQ(run_command({allot, "bench", "decode"}).out, "allot-model bench decode\n");
}

TEST(CommandLine, LightExecutableLinksNoModelRuntime) {
  const auto result = run_command({"/usr/bin/ldd", std::string(ALLOT_BIN_DIR) + "/allot"});
  ASSERT_EQ(result.code, 0);
  ASSERT_THAT(result.out, HasSubstr("libzmq"));
  for (const char* library : {"libtorch", "libc10", "libcudart", "libcuda"}) {
    EXPECT_THAT(result.out, Not(HasSubstr(library)));
  }
}

TEST(CommandLine, CompletionAndPagesAreThoseOfThisBuildsOptions) {
  const std::string help = run_command({"allot", "tune", "--help"}).out;
  const auto page = run_command({"allot", "man", "tune"});
  EXPECT_EQ(page.code, 0) << page.err;
  EXPECT_THAT(page.out, HasSubstr("\\fB\\-\\-gain\\-floor\\fR"));
  EXPECT_THAT(help, HasSubstr("--gain-floor "));
  const auto completion = run_command({"allot", "completion", "bash"});
  EXPECT_EQ(completion.code, 0) << completion.err;
  EXPECT_THAT(completion.out, HasSubstr(" --gain-floor "));
  EXPECT_THAT(run_command({"allot", "completion", "zsh"}).out, HasSubstr("'--gain-floor=["));
  expect_one_error(run_command({"allot", "completion", "fish"}), 2, "allot completion",
                   Names("fish", "bash", "zsh"));
  expect_one_error(run_command({"allot", "man", "tnue"}), 2, "allot man", Names("tnue", "tune"));
}

TEST(CommandLine, OptionsOfAnExecutableThatDoesNotRunAreLeftOutWithAWord) {
  const auto directory = fresh_directory();
  std::filesystem::copy_file(std::string(ALLOT_BIN_DIR) + "/allot", directory / "allot");
  const std::string model = directory / "allot-model";
  write_file_atomically(model, "#!/bin/sh\nexit 127\n");
  std::filesystem::permissions(model, std::filesystem::perms::owner_all);
  const auto result = run_command({(directory / "allot").string(), "completion", "bash"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, Names(model, 127));
  EXPECT_THAT(result.out, AllOf(HasSubstr(" eval "), HasSubstr("    'tune') words="),
                                Not(HasSubstr("    'eval') words="))));
  write_file_atomically(model, "#!/bin/sh\necho usage\n");
  std::filesystem::permissions(model, std::filesystem::perms::owner_all);
  expect_one_error(run_command({(directory / "allot").string(), "man"}), 1, "allot man",
                   Names(model, "usage"));
}

TEST(CommandLine, EveryCommandOfThisBuildHasAPage) {
  const auto folder = fresh_directory();
  ASSERT_EQ(run_command({"allot", "man", "--out", folder}).code, 0);
  for (const char* page : {"allot.1", "allot-tune.1", "allot-bench.1", "allot-man.1"})
    EXPECT_TRUE(std::filesystem::exists(folder / page)) << page;
  EXPECT_THAT(read_file(folder / "allot-bench.1"),
              AllOf(HasSubstr("BENCH TUNER"), HasSubstr("BENCH AGGREGATOR")));
}

TEST(CommandLine, FullDiskUnderStandardOutputIsAFailure) {
  const auto result =
      run_command({"/bin/sh", "-c", std::string(ALLOT_BIN_DIR) + "/allot tune --help > /dev/full"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names("standard output"));
}

TEST(TuneOptions, FaultsOfTheCommandLineComeTogetherAndNothingIsWritten) {
  const auto run = fresh_directory() / "run";
  const auto result = run_command({"allot", "tune", "--run", run.string(), "--totl", "64", "--floor", "-1"});
  expect_one_error(result, 2, "allot tune", Names("unknown", "--totl", "--total", "--floor", -1, 0));
  EXPECT_FALSE(std::filesystem::exists(run));
}

TEST(TuneOptions, MissingModelDirectoryIsNamedAndNothingIsWritten) {
  const auto run = fresh_directory() / "run";
  expect_one_error(run_command({"allot", "tune", "--run", run.string(), "--model", "/nowhere/model", "--data",
                                "/nowhere/train.jsonl", "--heldout-questions", "0", "--total", "64"}),
                   1, "allot tune", Names("/nowhere/model"));
  EXPECT_FALSE(std::filesystem::exists(run));
}

struct Damage {
  const char* name;
  const char* file;                         // under the small model's directory
  std::string (*edit)(const std::string&);  // its new content
  std::vector<std::string> named;           // by the message
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

class DamagedInput : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedInput, IsNamedInOneLineAndNothingIsWritten) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  const auto file = directory / GetParam().file;
  write_file_atomically(file, GetParam().edit(read_file(file)));
  const auto run = directory / "run";
  const auto result =
      run_command({"allot", "tune", "--model", small.model.string(), "--data", small.train.string(),
                   "--heldout", small.heldout.string(), "--run", run.string(), "--total", "64"});
  expect_one_error(result, 1, "allot tune", NamesAll(GetParam().named));
  EXPECT_FALSE(std::filesystem::exists(run));
}

INSTANTIATE_TEST_SUITE_P(
    Tune, DamagedInput,
    ::testing::Values(Damage{"TruncatedWeights",
                             "small-model/model.safetensors",
                             [](const std::string& text) { return text.substr(0, text.size() - 1); },
                             {"model.safetensors"}},
                      Damage{"UnknownArchitecture",
                             "small-model/config.json",
                             [](const std::string& text) {
                               return replaced(text, "LlamaForCausalLM", "MambaForCausalLM");
                             },
                             {"MambaForCausalLM", "LlamaForCausalLM"}},
                      Damage{"UnsupportedTokenizer",
                             "small-model/tokenizer.json",
                             [](const std::string& text) { return replaced(text, "WordLevel", "Unigram"); },
                             {"Unigram", "WordLevel"}},
                      Damage{"BrokenQuestion",
                             "train.jsonl",
                             [](const std::string& text) { return text + "{\"question\": 1}\n"; },
                             {"train.jsonl", "25"}}),
    [](const auto& damaged) { return damaged.param.name; });

TEST(TuneOptions, ScoreBudgetWithoutAScoreStageIsRefused) {
  const auto result = run_command({"allot", "tune", "--model", "m", "--data", "d", "--heldout", "h",
                                   "--total", "64", "--score-budget", "8"});
  expect_one_error(result, 2, "allot tune", Names("--score-stage", "exact", "--score-budget", 8));
}

TEST(TuneOptions, DryRunPrintsAConfigThatResolvesToItself) {
  const auto directory = fresh_directory();
  const auto config = directory / "tune.conf";
  const auto first =
      run_command(run_words("allot", "tune", write_small_model(directory), directory / "run", 4,
                            {"--policy", "pairs", "--gain", "0.1", "--prompt-style", "llama-chat", "--top-p",
                             "0.75", "--json", "--dry-run"}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("\ngain = 0.1\n"));
  EXPECT_THAT(
      first.out,
      HasSubstr("\ntemperature = 0.6\ntop-p = 0.75\nrepetition-penalty = 1.1\nmax-new-tokens = 1024\n"));
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
  write_file_atomically(config, first.out);
  const auto second = run_command({"allot", "tune", "--config", config.string(), "--dry-run"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
}

TEST(TuneOptions, PolicyOptionsGoThroughADryRunAndFlagsReplaceThoseOfTheFile) {
  const auto directory = fresh_directory();
  const auto config = directory / "tune.conf";
  const auto first =
      run_command(run_words("allot", "tune", write_small_model(directory), directory / "run", 4,
                            {"--policy", "pairs", "--policy-option", "gain=11", "--policy-option",
                             "pairs-per-update=7", "--dry-run"}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("\npolicy-option = gain=11\npolicy-option = pairs_per_update=7\n"),
                               HasSubstr("\ngain-offset = 5\n"), Not(HasSubstr("\ngain = ")),
                               Not(HasSubstr("\nlearning-rate = "))));
  write_file_atomically(config, first.out);
  const auto second = run_command({"allot", "tune", "--config", config.string(), "--dry-run"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  const auto third =
      run_command({"allot", "tune", "--config", config.string(), "--policy-option", "gain=3", "--dry-run"});
  EXPECT_THAT(third.out,
              AllOf(HasSubstr("\npolicy-option = gain=3\n"), HasSubstr("\npairs-per-update = 4\n")));
}

TEST(TuneOptions, AFlagOfAnotherPolicyIsRefused) {
  const auto result = run_command({"allot", "tune", "--model", "m", "--data", "d", "--heldout", "h",
                                   "--total", "64", "--policy", "reinforce-paper", "--gain", "3"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("--gain", "--learning-rate", "--episodes-per-update"));
  for (const char* wrong : {"gain", "gain=", "=3", "gain=much"}) {
    EXPECT_EQ(run_command({"allot", "tune", "--model", "m", "--data", "d", "--total", "64", "--dry-run",
                           "--policy-option", wrong})
                  .code,
              2)
        << wrong;
  }
}

TEST(TuneOptions, DryRunNamesWhatTheRunWouldTripOver) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  const auto code = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"allot",           "tune",     "--heldout-questions", "0", "--run",
                                      directory / "run", "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words).code;
  };
  EXPECT_EQ(code({"--model", small.model, "--data", small.train, "--total", "64"}), 0);
  EXPECT_NE(code({"--model", directory / "nowhere", "--data", small.train, "--total", "64"}), 0);
  EXPECT_NE(code({"--model", small.model, "--data", directory / "nowhere", "--total", "64"}), 0);
  EXPECT_NE(code({"--model", small.model, "--data", small.train, "--total", "3"}), 0);
}

TEST(AggregatorOptions, DryRunIsAnsweredWhereTheModelIsNotAndSaysSo) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  const auto away =
      run_command({"allot", "aggregator", "--model", "/inputs/model", "--data", "/inputs/train.jsonl",
                   "--total", "64", "--run", directory / "run", "--dry-run"});
  EXPECT_EQ(away.code, 0) << away.err;
  EXPECT_THAT(away.out, HasSubstr("\nprompt-style = auto\n"));
  EXPECT_THAT(away.err, Names("/inputs/model"));
  const auto here = run_command(run_words("allot", "aggregator", small, directory / "run", 4, {"--dry-run"}));
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_THAT(here.out, HasSubstr("\nprompt-style = plain\n"));
  EXPECT_THAT(here.out, HasSubstr("\nmax-new-tokens = 256\n"));
}

TEST(TuneOptions, MaxPolicyLagIsANumberOrNone) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  const auto resolved = [&](const std::vector<std::string>& more) {
    auto command = run_words("allot", "tune", small, directory / "run", 4, more);
    command.emplace_back("--dry-run");
    const auto result = run_command(command);
    EXPECT_EQ(result.code, 0) << result.err;
    const size_t at = result.out.find("\nmax-policy-lag = ");
    return result.out.substr(at + 1, result.out.find('\n', at + 1) - at - 1);
  };
  EXPECT_EQ(resolved({}), "max-policy-lag = none");
  EXPECT_EQ(resolved({"--policy", "pairs"}), "max-policy-lag = 50");
  EXPECT_EQ(resolved({"--policy", "reinforce-paper"}), "max-policy-lag = none");
  EXPECT_EQ(resolved({"--policy", "reinforce-paper", "--max-policy-lag", "7"}), "max-policy-lag = 7");
  EXPECT_EQ(resolved({"--policy", "pairs", "--max-policy-lag", "none"}), "max-policy-lag = none");
  for (const char* wrong : {"-1", "ten", "1.5", "5x"}) {
    const auto result = run_command({"allot", "tune", "--model", "m", "--data", "d", "--total", "64",
                                     std::string("--max-policy-lag=") + wrong, "--dry-run"});
    EXPECT_EQ(result.code, 2) << wrong;
  }
}

TEST(TuneOptions, EveryShippedConfigFileIsAccepted) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  write_small_adapter(directory / "adapter", 4);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(ALLOT_SOURCE_DIR) + "/configs")) {
    if (entry.path().extension() != ".conf") continue;
    ++files;
    std::vector<std::string> more = {"--config", entry.path().string(), "--heldout-questions", "12",
                                     "--dry-run"};
    // A file's adapter is for the model that it names, which is another one.
    if (read_file(entry.path()).find("\nadapter = ") != std::string::npos)
      more.insert(more.end(), {"--adapter", (directory / "adapter").string()});
    const auto result = run_command(run_words("allot", "tune", small, directory / "run", 4, more));
    EXPECT_EQ(result.code, 0) << result.err;
  }
  EXPECT_GE(files, 2);
}

TEST(Status, NeedsOneOfRunAndConnect) {
  expect_one_error(run_command({"allot", "status"}), 2, "allot status", Names("--run", "--connect"));
}

TEST(Status, DirectoryWithoutARunIsNamed) {
  const auto directory = fresh_directory();
  const auto result = run_command({"allot", "status", "--run", directory.string()});
  expect_one_error(result, 1, "allot status", Names(directory));
}

const std::string kTinyGsm = std::string(ALLOT_SOURCE_DIR) + "/assets/tiny-gsm";

TEST(Tokenize, JsonTextsKeepTheirLineBreaksOnTheWayToIdsAndBack) {
  const std::string texts = "\"Tom has\\n3 apples.\"\n\"\"\n\"one\\r\\ntwo\"\n";
  const auto ids = run_command({"allot", "tokenize", "--model", kTinyGsm, "--json", "--no-special"}, texts);
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), '\n'), 3);
  const auto back = run_command({"allot", "tokenize", "--model", kTinyGsm, "--json", "--decode"}, ids.out);
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_NE(back.out.find("\"Tom has\\n3 apples.\"\n\"\"\n"), std::string::npos) << back.out;
}

TEST(Tokenize, ALineThatIsNoJsonStringOrNoUtf8IsNamedWithWhatIsWrong) {
  expect_one_error(run_command({"allot", "tokenize", "--model", kTinyGsm, "--json"}, "[1]\n"), 1,
                   "allot tokenize", Names("line 1", "stdin", "JSON"));
  expect_one_error(run_command({"allot", "tokenize", "--model", kTinyGsm}, "ab\xFFz\n"), 1, "allot tokenize",
                   Names("line 1", "stdin", "UTF-8", 2, 4));
}

TEST(Inspect, PathThatHoldsNothingKnownIsNamed) {
  const auto directory = fresh_directory();
  expect_one_error(run_command({"allot", "inspect", directory.string()}), 1, "allot inspect",
                   Names(directory, "config.json", "spec.json"));
  expect_one_error(run_command({"allot", "inspect", "/nowhere"}), 1, "allot inspect", Names("/nowhere"));
}

TEST(Inspect, AnAdapterIsLookedAtWithItsModel) {
  const auto directory = fresh_directory();
  const SmallModel small = write_small_model(directory);
  const std::string adapter = directory / "lora";
  write_small_adapter(adapter, 4);
  const auto looked_at = [&] {
    return run_command({"allot", "inspect", small.model.string(), "--adapter", adapter, "--json"});
  };
  const auto json = nlohmann::json::parse(looked_at().out);
  EXPECT_EQ(json.at("adapter"), adapter);
  EXPECT_EQ(json.at("adapter_base_model"), "somebody/base");
  EXPECT_EQ(json.at("adapter_rank"), nlohmann::json::array({2}));
  EXPECT_EQ(json.at("adapter_alpha"), nlohmann::json::array({4.0}));
  EXPECT_EQ(json.at("adapter_modules"), nlohmann::json::array({"q_proj"}));
  EXPECT_EQ(json.at("adapter_weights"), 1);
  EXPECT_EQ(json.at("adapter_fingerprint").get<std::string>().size(), 64u);
  std::filesystem::remove(directory / "lora/adapter_model.safetensors");
  EXPECT_EQ(looked_at().code, 1);
  EXPECT_THAT(looked_at().out, Names("problems", adapter, "adapter_model.safetensors"));
  expect_one_error(run_command({"allot", "inspect", adapter}), 2, "allot inspect",
                   Names(adapter, "--adapter"));
  expect_one_error(run_command({"allot", "inspect", directory.string(), "--adapter", adapter}), 2,
                   "allot inspect", Names(adapter, directory));
}

// A small model in a cache of the hub.
struct CachedModel {
  explicit CachedModel(const std::filesystem::path& directory)
      : cache(directory / "hub"),
        small(write_small_model(directory)),
        snapshot(write_snapshot(cache, "org/tiny", "main", commit, small.model)) {}

  CommandResult run(const std::vector<std::string>& words, const std::string& input = "") const {
    std::vector<std::string> all = {"/usr/bin/env", "HF_HUB_CACHE=" + cache.string(),
                                    std::string(ALLOT_BIN_DIR) + "/allot"};
    all.insert(all.end(), words.begin(), words.end());
    return run_command(all, input);
  }

  std::string commit = std::string(40, 'a');
  std::filesystem::path cache;
  SmallModel small;
  std::filesystem::path snapshot;
};

TEST(HubModels, AreTakenByNameAsModelAndAsAdapter) {
  const auto directory = fresh_directory();
  const CachedModel cached(directory);
  write_small_adapter(directory / "lora", 4);
  const auto adapter =
      write_snapshot(cached.cache, "ann/lora", "v2", std::string(40, 'b'), directory / "lora");
  const auto json =
      nlohmann::json::parse(cached.run({"inspect", "org/tiny", "--adapter", "ann/lora@v2", "--json"}).out);
  EXPECT_EQ(json.at("path"), cached.snapshot.string());
  EXPECT_EQ(json.at("hub_name"), "org/tiny");
  EXPECT_EQ(json.at("hub_commit"), cached.commit);
  EXPECT_EQ(json.at("layers"), 8);
  EXPECT_EQ(json.at("adapter"), adapter.string());
  EXPECT_EQ(json.at("adapter_rank"), nlohmann::json::array({2}));
  EXPECT_EQ(cached.run({"tokenize", "--model", "org/tiny@main"}, "1\n").out,
            cached.run({"tokenize", "--model", cached.snapshot}, "1\n").out);
}

TEST(HubModels, AreRecordedAsTheSnapshotThatTheNameStandsForNow) {
  const CachedModel cached(fresh_directory());
  SmallModel named = cached.small;
  named.model = "org/tiny";
  std::vector<std::string> words = run_words("allot", "tune", named, cached.cache / "run", 4, {"--dry-run"});
  words.erase(words.begin());
  const auto result = cached.run(words);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("\nmodel = " + cached.snapshot.string() + "\n"));
}

TEST(HubModels, ThatAreNotThereAreNamedWithTheCommandThatDownloadsThem) {
  const CachedModel cached(fresh_directory());
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"inspect", "org/other@v1"}, {"tokenize", "--model", "org/other@v1"}}) {
    expect_one_error(cached.run(words), 1, "allot " + words[0],
                     Names(cached.cache, "org/other@v1", "hf download org/other --revision v1"));
  }
  SmallModel other = cached.small;
  other.model = "org/other";
  std::vector<std::string> words = run_words("allot", "tune", other, cached.cache / "run", 4, {"--dry-run"});
  words.erase(words.begin());
  expect_one_error(cached.run(words), 1, "allot tune", Names("org/other", "hf download org/other"));
  words[0] = "aggregator";
  const auto elsewhere = cached.run(words);
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  EXPECT_THAT(elsewhere.out, HasSubstr("\nmodel = org/other\n")) << "a config for another machine";
  EXPECT_THAT(elsewhere.err, Names("org/other", "hf download org/other"));
  words.pop_back();
  expect_one_error(cached.run(words), 1, "allot aggregator", Names("org/other", "hf download org/other"));

  std::filesystem::remove(cached.snapshot / "config.json");
  std::filesystem::remove(cached.snapshot / "tokenizer.json");
  expect_one_error(cached.run({"inspect", "org/tiny"}), 1, "allot inspect",
                   Names("config.json", "hf download org/tiny --revision " + cached.commit));
}

TEST(HubModels, AnExistingDirectoryWinsOverAName) {
  const CachedModel cached(fresh_directory());
  ASSERT_EQ(cached.run({"inspect", cached.snapshot.string()}).code, 0);
  std::filesystem::create_directories(cached.cache / "org/tiny");
  // The command runs where org/tiny is a directory without a model.
  const auto result =
      run_command({"/usr/bin/env", "-C", cached.cache.string(), "HF_HUB_CACHE=" + cached.cache.string(),
                   std::string(ALLOT_BIN_DIR) + "/allot", "inspect", "org/tiny"});
  expect_one_error(result, 1, "allot inspect", Names("org/tiny", "config.json"));
}

TEST(Inspect, EveryProblemOfABrokenModelDirectoryIsNamed) {
  const auto directory = fresh_directory();
  write_file_atomically(directory / "config.json", R"({"architectures": ["MambaForCausalLM"]})");
  write_file_atomically(directory / "tokenizer.json", "{");
  write_file_atomically(directory / "model.safetensors", "short");
  const auto result = run_command({"allot", "inspect", directory.string()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, Names("MambaForCausalLM", "tokenizer.json", "model.safetensors"));
}

}  // namespace
}  // namespace allot::app
