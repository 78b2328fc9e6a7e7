#include "app/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <stdexcept>

#include "app/cli/nearest_name.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Fields {
  std::string name = "first";
  std::filesystem::path run;
  std::string policy = "pairs";
  int64_t total = 64;
  int32_t floor = 1;
  double gain = 0.5;
  bool json = false;
  std::vector<std::string> schedules;
  std::string model;
  std::optional<int64_t> seed;
  std::optional<std::filesystem::path> adapter;
};

class Options : public ::testing::Test {
 protected:
  Options() : config_(std::filesystem::path(::testing::TempDir()) / (test_name() + ".conf")) {
    options_.text("name", &fields_.name, "TEXT", "a name");
    options_.path("run", &fields_.run, "run directory");
    options_.path("adapter", &fields_.adapter, "adapter directory");
    options_.choice("policy", &fields_.policy, {"pairs", "reinforce-paper"}, "how to learn");
    options_.integer("total", &fields_.total, 1, 1000, "N", "samples in all");
    options_.integer("floor", &fields_.floor, 0, 8, "S", "least samples of a layer");
    options_.real("gain", &fields_.gain, 0, 1, "A", "step size");
    options_.flag("json", &fields_.json, "print JSON");
    options_.texts("schedule", &fields_.schedules, "S", "a schedule to score");
    options_.integer("seed", &fields_.seed, 0, 99, "N", "of random weights");
    options_.positional("model", &fields_.model, "DIR", "model directory");
  }

  OptionSet::Parsed parse(const std::vector<std::string>& arguments) { return options_.parse(arguments); }

  // What parse() throws, or "" when it does not.
  std::string fault_of(const std::vector<std::string>& arguments) {
    try {
      (void)options_.parse(arguments);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  std::string config(const std::string& text) {
    write_file_atomically(config_, text);
    return config_.string();
  }

  static std::string test_name() { return ::testing::UnitTest::GetInstance()->current_test_info()->name(); }

  std::filesystem::path config_;
  Fields fields_;
  OptionSet options_{"tune", "learn a schedule", "allot tune --total 64 assets/tiny-gsm"};
};

TEST_F(Options, EveryKindOfOptionReachesItsField) {
  ASSERT_EQ(
      parse({"--name=a b", "--run", "runs/x", "--policy", "reinforce-paper", "--total", "12", "--floor=0",
             "--gain", "0.25", "--json", "--schedule", "1,2", "--schedule", "dense", "dir"}),
      OptionSet::Parsed::kRun);
  EXPECT_EQ(fields_.name, "a b");
  EXPECT_EQ(fields_.run, "runs/x");
  EXPECT_EQ(fields_.policy, "reinforce-paper");
  EXPECT_EQ(fields_.total, 12);
  EXPECT_EQ(fields_.floor, 0);
  EXPECT_EQ(fields_.gain, 0.25);
  EXPECT_TRUE(fields_.json);
  EXPECT_THAT(fields_.schedules, ElementsAre("1,2", "dense"));
  EXPECT_EQ(fields_.model, "dir");
}

TEST_F(Options, APathWithoutADefaultIsEmptyUntilItIsGiven) {
  ASSERT_EQ(parse({"--adapter", "", "--total", "5"}), OptionSet::Parsed::kRun);
  EXPECT_FALSE(fields_.adapter);
  EXPECT_EQ(options_.value("adapter"), "");
  options_.fill("adapter", "lora");
  EXPECT_EQ(fields_.adapter, "lora");
  EXPECT_EQ(options_.value("adapter"), "lora");
}

TEST_F(Options, DefaultsStayAndAreNotGiven) {
  ASSERT_EQ(parse({"--total", "5"}), OptionSet::Parsed::kRun);
  EXPECT_EQ(fields_.policy, "pairs");
  EXPECT_TRUE(options_.given("total"));
  EXPECT_FALSE(options_.given("policy"));
}

TEST_F(Options, UnknownOptionNamesTheNearest) {
  EXPECT_THAT(fault_of({"--totl", "5"}), Names("unknown", "--totl", "--total"));
}

TEST_F(Options, UnknownOptionFarFromAllPointsToHelp) {
  EXPECT_THAT(fault_of({"--zzzzzzzzz"}), Names("unknown", "--zzzzzzzzz", "allot tune --help"));
}

TEST_F(Options, PrefixOfAnOptionIsNotThatOption) {
  EXPECT_THAT(fault_of({"--tot", "5"}), Names("unknown", "--tot"));
}

TEST_F(Options, OutOfRangeValueNamesValueAndRange) {
  EXPECT_THAT(fault_of({"--total", "1001"}), Names("--total", 1001, 1, 1000));
  EXPECT_EQ(fields_.total, 64);
}

TEST_F(Options, NumbersThatDoNotParseAreFaults) {
  for (const char* value : {"", "x", "1.5", "12 ", "0x10", "99999999999999999999"}) {
    OptionSet options("tune", "", "");
    int64_t total = 0;
    options.integer("total", &total, 0, 1000, "N", "");
    EXPECT_THROW((void)options.parse(std::vector<std::string>{std::string("--total=") + value}), UsageError)
        << value;
  }
  EXPECT_THAT(fault_of({"--gain", "nan"}), Names("--gain", "nan", 0, 1));
}

TEST_F(Options, NegativeNumberIsAValueNotAnOption) {
  EXPECT_THAT(fault_of({"--floor", "-1"}), Names("--floor", "-1"));
}

TEST_F(Options, UnknownChoiceNamesTheChoicesAndTheNearest) {
  EXPECT_THAT(fault_of({"--policy", "pair"}), Names("--policy", "pair", "pairs", "reinforce-paper", "pairs"));
}

TEST_F(Options, RepeatedOptionIsAFault) {
  EXPECT_THAT(fault_of({"--total", "5", "--total", "6"}), Names("--total", "twice"));
}

TEST_F(Options, OptionWithoutValueIsAFault) {
  EXPECT_THAT(fault_of({"--floor", "--json", "--total"}), Names("--floor", "S", "--total", "N"));
  EXPECT_TRUE(fields_.json);
}

TEST_F(Options, SurplusWordIsAFault) {
  EXPECT_THAT(fault_of({"dir", "more"}), Names("more"));
}

TEST_F(Options, ShortOptionIsAFault) {
  EXPECT_THAT(fault_of({"dir", "-x"}), Names("unknown", "-x"));
}

TEST_F(Options, SeveralFaultsAreReportedTogether) {
  options_.require("run");
  const std::string fault = fault_of({"--totl", "5", "--floor", "9", "--policy"});
  EXPECT_THAT(fault, Names("--totl", "--floor", 9, 0, 8, "--policy", "--run", "missing"));
  EXPECT_THAT(fault, Not(Names(5)));
}

TEST_F(Options, ConfigFileSetsFieldsAndFlagsWin) {
  const std::string file = config(
      "# a comment\n\ntotal = 7   # trailing comment\nname = a#b\njson=true\nschedule = 1\nschedule = 2\n"
      "run = \"with # and \\\" in it\"\n");
  ASSERT_EQ(parse({"--config", file, "--total", "9"}), OptionSet::Parsed::kRun);
  EXPECT_EQ(fields_.total, 9);
  EXPECT_EQ(fields_.name, "a#b");
  EXPECT_TRUE(fields_.json);
  EXPECT_THAT(fields_.schedules, ElementsAre("1", "2"));
  EXPECT_EQ(fields_.run, "with # and \" in it");
}

TEST_F(Options, FlagOfTheCommandLineTurnsOffWhatTheFileTurnsOn) {
  ASSERT_EQ(parse({"--config", config("json = true\n"), "--json=false"}), OptionSet::Parsed::kRun);
  EXPECT_FALSE(fields_.json);
}

TEST_F(Options, ConfigFaultsNameFileLineAndNearestKey) {
  const std::string file = config("totl = 7\nfloor = 9\njust words\nconfig = other\n");
  const std::string fault = fault_of({"--config", file});
  EXPECT_THAT(fault, Names(file + ":1", "unknown", "totl", "total"));
  EXPECT_THAT(fault, Names(file + ":2", "floor", 9, 0, 8));
  EXPECT_THAT(fault, Names(file + ":3", "just words", "name = value"));
  EXPECT_THAT(fault, Names(file + ":4", "unknown", "config"));
}

TEST_F(Options, ConfigKeyGivenTwiceIsAFault) {
  EXPECT_THAT(fault_of({"--config", config("total = 7\ntotal = 8\n")}), Names(":2", "total", "twice"));
}

TEST_F(Options, AConfigsValueThatBelongsToAnotherChoiceIsLeftOut) {
  const std::string file = config("width = 2\npolicy = pairs\n");
  const auto width_of = [](std::vector<std::string> arguments) {
    OptionSet options("test", "a width that belongs to a policy", "allot test");
    std::string policy = "pairs";
    std::string width = "1";
    options.choice("policy", &policy, {"pairs", "reinforce-paper"}, "how to learn");
    options.custom({.name = "width",
                    .hint = "W",
                    .help = "of pairs alone",
                    .belongs_to = "policy",
                    .set = [&](const std::string& text) { return width = text, std::string(); },
                    .get = [&] { return std::vector{width}; }});
    EXPECT_EQ(options.parse(arguments), OptionSet::Parsed::kRun);
    return width;
  };
  EXPECT_EQ(width_of({"--config", file}), "2");
  EXPECT_EQ(width_of({"--config", file, "--policy", "pairs"}), "2");
  EXPECT_EQ(width_of({"--config", file, "--policy", "reinforce-paper"}), "1");
  EXPECT_EQ(width_of({"--config", file, "--policy", "reinforce-paper", "--width", "3"}), "3");
}

TEST_F(Options, MissingConfigFileIsAnError) {
  EXPECT_THROW((void)parse({"--config", "/nowhere/a.conf"}), NotFound);
}

TEST_F(Options, ResolvedConfigFeedsBackToTheSameFields) {
  ASSERT_EQ(parse({"--name", " x # \"y\" ", "--total", "9", "--schedule", "1,2", "--schedule", "dense",
                   "--gain", "0.1", "--json"}),
            OptionSet::Parsed::kRun);
  const std::string file = config(options_.resolved());

  Fields again;
  again.json = false;
  OptionSet options("tune", "", "");
  options.text("name", &again.name, "", "");
  options.path("run", &again.run, "");
  options.choice("policy", &again.policy, {"pairs", "reinforce-paper"}, "");
  options.integer("total", &again.total, 1, 1000, "", "");
  options.integer("floor", &again.floor, 0, 8, "", "");
  options.real("gain", &again.gain, 0, 1, "", "");
  options.flag("json", &again.json, "");
  options.texts("schedule", &again.schedules, "", "");
  options.positional("model", &again.model, "", "");
  ASSERT_EQ(options.parse(std::vector<std::string>{"--config", file}), OptionSet::Parsed::kRun);
  EXPECT_EQ(options.resolved(), options_.resolved());
  EXPECT_EQ(again.name, fields_.name);
  EXPECT_EQ(again.gain, 0.1);
}

TEST_F(Options, DryRunPrintsTheResolvedConfigAndRunsNothing) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--dry-run", "--total", "9"}), OptionSet::Parsed::kDone);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(printed, options_.resolved());
  EXPECT_THAT(printed, HasSubstr("\ntotal = 9\n"));
}

TEST_F(Options, NumberWithoutDefaultIsLeftOutOfTheResolvedConfig) {
  fields_.total = 0;
  EXPECT_THAT(options_.resolved(), Not(HasSubstr("total")));
  EXPECT_THAT(options_.help(), HasSubstr("samples in all (from 1 to 1000)"));
}

TEST_F(Options, OptionalNumberHasAValueOnlyWhenGiven) {
  EXPECT_THAT(options_.resolved(), Not(HasSubstr("seed")));
  EXPECT_THAT(options_.help(), HasSubstr("of random weights (from 0 to 99)"));
  EXPECT_EQ(parse({"--total", "9"}), OptionSet::Parsed::kRun);
  EXPECT_EQ(fields_.seed, std::nullopt);
}

TEST_F(Options, OptionalNumberTakesItsSmallestValue) {
  EXPECT_EQ(parse({"--seed", "0"}), OptionSet::Parsed::kRun);
  EXPECT_EQ(fields_.seed, 0);
  EXPECT_THAT(options_.resolved(), HasSubstr("\nseed = 0\n"));
}

TEST_F(Options, HelpListsOptionsWithRangeDefaultAndExampleEvenBesideFaults) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(parse({"--total", "-5", "--help"}), OptionSet::Parsed::kDone);
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(help, HasSubstr("Example: allot tune --total 64 assets/tiny-gsm"));
  EXPECT_THAT(help, HasSubstr("--floor S"));
  EXPECT_THAT(help, HasSubstr("least samples of a layer (from 0 to 8; default 1)"));
  EXPECT_THAT(help, HasSubstr("one of pairs, reinforce-paper; default pairs"));
}

TEST_F(Options, AnOptionThatIsNotGivenIsFilledAndOneThatIsGivenStays) {
  ASSERT_EQ(parse({"--total", "9"}), OptionSet::Parsed::kRun);
  options_.fill("total", "12");
  options_.fill("floor", "3");
  EXPECT_EQ(options_.value("total"), "9");
  EXPECT_EQ(options_.value("floor"), "3");
  EXPECT_EQ(options_.value("seed"), "");
  EXPECT_THROW(options_.fill("gain", "2"), UsageError);
}

TEST_F(Options, ANameThatNoOptionHasIsRefusedByName) {
  ASSERT_EQ(parse({}), OptionSet::Parsed::kRun);
  EXPECT_FALSE(options_.has("totl"));
  for (const std::function<void()>& use : {std::function<void()>([&] { options_.fill("totl", "5"); }),
                                           std::function<void()>([&] { (void)options_.value("totl"); }),
                                           std::function<void()>([&] { options_.require("totl"); })}) {
    EXPECT_THAT(message_of<std::logic_error>(use), HasSubstr("--totl"));
  }
}

TEST(NearestName, FindsSwapsAndLeavesStrangersAlone) {
  const std::vector<std::string> known = {"tune", "status", "aggregator"};
  EXPECT_EQ(nearest_name("tnue", known), "tune");
  EXPECT_EQ(nearest_name("stats", known), "status");
  EXPECT_EQ(nearest_name("agregator", known), "aggregator");
  EXPECT_EQ(nearest_name("wibble", known), std::nullopt);
  EXPECT_EQ(nearest_name("", known), std::nullopt);
}

TEST_F(Options, DescribeSaysWhatEachOptionTakes) {
  std::string devices;
  options_.devices(&devices, "where");
  options_.text("estimators", &fields_.policy, "NAME,…", "several");
  options_.suggest("estimators", {"sys", "joint"});
  ASSERT_EQ(parse({"--dry-run"}), OptionSet::Parsed::kDone);
  const CommandDescription command = options_.describe();
  EXPECT_EQ(command.name, "tune");
  EXPECT_EQ(command.title, "learn a schedule");
  EXPECT_THAT(command.positionals, ElementsAre("model"));
  EXPECT_EQ(command.find("run")->takes, Takes::kFile);
  EXPECT_EQ(command.find("model")->takes, Takes::kDirectory);
  EXPECT_EQ(command.find("total")->takes, Takes::kValue);
  EXPECT_EQ(command.find("total")->facts, "from 1 to 1000; default 64");
  EXPECT_EQ(command.find("json")->takes, Takes::kNothing);
  EXPECT_TRUE(command.find("schedule")->repeatable);
  EXPECT_THAT(command.find("policy")->values, ElementsAre("pairs", "reinforce-paper"));
  EXPECT_FALSE(command.find("policy")->list);
  EXPECT_THAT(command.find("estimators")->values, ElementsAre("sys", "joint"));
  EXPECT_TRUE(command.find("estimators")->list);
  EXPECT_THAT(command.find("devices")->values, ElementsAre("all", "cpu", "cuda"));
  EXPECT_TRUE(command.find("devices")->list);
  EXPECT_NE(command.find("help"), nullptr);
  EXPECT_EQ(command.find("nothing"), nullptr);
  EXPECT_THROW(options_.suggest("nothing", {}), std::logic_error);
}

TEST_F(Options, HelpAsJsonIsTheDescriptionAndNothingElseIsRead) {
  ::testing::internal::CaptureStdout();
  const auto parsed = parse({"--total", "none", "--help=json"});
  const std::string line = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(parsed, OptionSet::Parsed::kDone);
  EXPECT_THAT(read_json_lines(line, "stdout"), ElementsAre(options_.describe()));
  EXPECT_THAT(options_.help(), HasSubstr(options_.describe().find("gain")->text()));
}

TEST(PositionalChoice, TakesOneOfItsWords) {
  for (const bool known : {true, false}) {
    std::string action;
    OptionSet set("history", "what was", "allot history check");
    set.positional_choice("action", &action, {"check", "export"}, "ACTION", "what to do");
    const std::vector<std::string> words = {known ? "export" : "exprt"};
    if (known) {
      EXPECT_EQ(set.parse(words), OptionSet::Parsed::kRun);
      EXPECT_EQ(action, "export");
    } else {
      EXPECT_THAT(message_of<UsageError>([&] { (void)set.parse(words); }),
                  Names("--action", "exprt", "check", "export"));
    }
  }
}

}  // namespace
}  // namespace allot::app
