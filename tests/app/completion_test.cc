// The scripts run in the shell that they are for; nothing called allot is there.
#include "app/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "app/cli/command_output.h"
#include "base/file.h"
#include "base/temporary_directory.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<CommandDescription> example_commands() {
  const OptionDescription estimator = {.name = "estimator",
                                       .hint = "NAME",
                                       .help = "how",
                                       .takes = Takes::kValue,
                                       .values = {"sys", "strat", "joint"}};
  OptionDescription estimators = estimator;
  estimators.hint = "NAME,…";
  estimators.list = true;
  const OptionDescription model = {
      .name = "model", .hint = "PATH", .help = "model's [directory]: \\ it", .takes = Takes::kFile};
  const OptionDescription schedule = {.name = "schedule",
                                      .hint = "SCHEDULE",
                                      .help = "which",
                                      .takes = Takes::kFile,
                                      .values = {"dense"},
                                      .repeatable = true};
  const OptionDescription folder = {
      .name = "folder", .hint = "DIR", .help = "where", .takes = Takes::kDirectory};
  const OptionDescription total = {.name = "total", .hint = "N", .help = "samples", .takes = Takes::kValue};
  const OptionDescription json = {.name = "json", .help = "print JSON"};
  const OptionDescription action = {.name = "action",
                                    .hint = "ACTION",
                                    .help = "what",
                                    .takes = Takes::kValue,
                                    .values = {"check", "export"}};
  return {{.name = "eval",
           .summary = "score it",
           .title = "score it well",
           .example = "allot eval",
           .options = {model, schedule, estimator, total, json}},
          {.name = "analyze",
           .summary = "look",
           .title = "look",
           .example = "allot analyze",
           .options = {estimators, json}},
          {.name = "history",
           .summary = "the past",
           .title = "the past",
           .example = "allot history",
           .positionals = {"action", "folder"},
           .options = {action, folder, json}},
          {.name = "bench decode",
           .summary = "measure",
           .title = "decode",
           .example = "allot bench decode",
           .options = {model}},
          {.name = "bench tuner",
           .summary = "measure",
           .title = "tuner",
           .example = "allot bench tuner",
           .options = {total}},
          {.name = "worker", .summary = "in a program that is missing"}};
}

class BashCompletion : public ::testing::Test {
 protected:
  BashCompletion() {
    write_file_atomically(directory_.path() / "allot.bash", bash_completion(example_commands()));
    write_file_atomically(directory_.path() / "place/weights file.bin", "");
    std::filesystem::create_directories(directory_.path() / "place/folder");
  }

  // What the Tab key offers at the end of these words, from a folder with a file and a folder in it.
  std::vector<std::string> offered(const std::vector<std::string>& words) {
    std::string script =
        "cd " + (directory_.path() / "place").string() + " && PATH= && . ../allot.bash && COMP_WORDS=(";
    for (const std::string& word : words) script += "'" + word + "' ";
    script += ") && COMP_CWORD=" + std::to_string(words.size() - 1) +
              " && _allot && for word in \"${COMPREPLY[@]}\"; do echo \"$word\"; done";
    std::istringstream lines(output_of({"/bin/bash", "--norc", "-c", script}));
    std::vector<std::string> answer;
    for (std::string line; std::getline(lines, line);) answer.push_back(line);
    return answer;
  }

  TemporaryDirectory directory_;
};

TEST_F(BashCompletion, CommandsAndTheirFormsAreOffered) {
  EXPECT_THAT(offered({"allot", ""}),
              UnorderedElementsAre("eval", "analyze", "history", "bench", "worker", "--help", "--version"));
  EXPECT_THAT(offered({"allot", "ev"}), ElementsAre("eval"));
  EXPECT_THAT(offered({"allot", "bench", ""}), ElementsAre("decode", "tuner"));
}

TEST_F(BashCompletion, OptionsOfTheCommandAreOfferedOnce) {
  EXPECT_THAT(offered({"allot", "eval", ""}),
              UnorderedElementsAre("--model", "--schedule", "--estimator", "--total", "--json"));
  EXPECT_THAT(offered({"allot", "eval", "--json", "--schedule", "dense", "--"}),
              UnorderedElementsAre("--model", "--schedule", "--estimator", "--total"));
  EXPECT_THAT(offered({"allot", "bench", "tuner", "--"}), ElementsAre("--total"));
  EXPECT_THAT(offered({"allot", "worker", "--"}), IsEmpty());
}

TEST_F(BashCompletion, ValuesOfAClosedSetAreOfferedAndNothingForANumber) {
  EXPECT_THAT(offered({"allot", "eval", "--estimator", "s"}), UnorderedElementsAre("sys", "strat"));
  EXPECT_THAT(offered({"allot", "eval", "--estimator", "=", "j"}), ElementsAre("joint"));
  EXPECT_THAT(offered({"allot", "eval", "--estimator", "="}), UnorderedElementsAre("sys", "strat", "joint"));
  EXPECT_THAT(offered({"allot", "eval", "--total", ""}), IsEmpty());
}

TEST_F(BashCompletion, AfterACommaTheNextOfSeveralValuesIsOffered) {
  EXPECT_THAT(offered({"allot", "analyze", "--estimator", "joint,s"}),
              UnorderedElementsAre("joint,sys", "joint,strat"));
  EXPECT_THAT(offered({"allot", "eval", "--estimator", "joint,s"}), IsEmpty());
}

TEST_F(BashCompletion, PathsAreOfferedWithTheWordsThatStandForThem) {
  EXPECT_THAT(offered({"allot", "eval", "--model", ""}), UnorderedElementsAre("weights file.bin", "folder"));
  EXPECT_THAT(offered({"allot", "eval", "--schedule", "d"}), ElementsAre("dense"));
  EXPECT_THAT(offered({"allot", "eval", "--schedule", "w"}), ElementsAre("weights file.bin"));
  EXPECT_THAT(offered({"allot", "history", "--folder", ""}), ElementsAre("folder"));
}

TEST_F(BashCompletion, BareWordsAreOfferedByTheirPlace) {
  EXPECT_THAT(offered({"allot", "history", ""}), ElementsAre("check", "export"));
  EXPECT_THAT(offered({"allot", "history", "check", ""}), ElementsAre("folder"));
  EXPECT_THAT(offered({"allot", "history", "--json", ""}), UnorderedElementsAre("--action", "--folder"));
}

TEST(ZshCompletion, SpecificationsNameOptionValuesAndPlaces) {
  const std::string script = zsh_completion(example_commands());
  EXPECT_TRUE(script.starts_with("#compdef allot\n"));
  EXPECT_THAT(script, HasSubstr("'--model=[model'\\''s \\[directory\\]\\: \\\\ it]:PATH:_files'"));
  EXPECT_THAT(script, HasSubstr("'*--schedule=[which]:SCHEDULE:{compadd - dense; _files}'"));
  EXPECT_THAT(script, HasSubstr("'--estimator=[how]:NAME:(sys strat joint)'"));
  EXPECT_THAT(script, HasSubstr("'--estimator=[how]:NAME,…:_sequence compadd - sys strat joint'"));
  EXPECT_THAT(script, HasSubstr("'--json[print JSON]'"));
  EXPECT_THAT(script, HasSubstr("'2:DIR:_files -/'"));
}

}  // namespace
}  // namespace allot::app
