#include "app/cli/manual_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

CommandDescription example_command(const std::string& name) {
  return {.name = name,
          .summary = "score it",
          .title = "score a model",
          .example = ".venv/bin/allot eval --total 3",
          .positionals = {"total"},
          .options = {{.name = "total",
                       .hint = "N,…",
                       .help = "back\\slash",
                       .facts = "from 1 to 8; default 4",
                       .takes = Takes::kValue,
                       .values = {},
                       .list = true,
                       .repeatable = true},
                      {.name = "dry-run", .help = "only look"}}};
}

TEST(ManualPage, SaysWhatHelpSaysWithRoffsOwnCharactersEscaped) {
  const std::vector<CommandDescription> one = {example_command("eval")};
  const std::string page = manual_of_command(one, "1.2.3");
  EXPECT_THAT(
      page,
      HasSubstr(".TP\n\\fB\\-\\-total\\fR \\fIN,\\[u2026]\\fR\nback\\eslash (from 1 to 8; default 4)\n"));
  EXPECT_THAT(page, HasSubstr("\n\\fB\\-\\-dry\\-run\\fR\nonly look\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.venv/bin/allot eval \\-\\-total 3\n"));
  EXPECT_THAT(page, HasSubstr("\\fBallot eval\\fR [N,\\[u2026]] [options]"));
  EXPECT_THAT(page, HasSubstr("\"allot 1.2.3\""));
  EXPECT_THAT(help_text(one[0]),
              AllOf(HasSubstr("back\\slash (from 1 to 8; default 4)"), HasSubstr("--dry-run")));
}

TEST(ManualPage, FormsOfACommandShareItsPage) {
  std::vector<CommandDescription> forms = {example_command("bench decode"), example_command("bench tuner")};
  forms[1].options.erase(forms[1].options.begin() + 1);
  const std::string page = manual_of_command(forms, "1");
  EXPECT_THAT(page, AllOf(HasSubstr("ALLOT\\-BENCH"), HasSubstr(".SH BENCH DECODE\n"),
                          HasSubstr(".SH BENCH TUNER\n")));
  const std::string all = manual_of_all(forms, "1");
  EXPECT_EQ(all.find(".BR allot\\-bench (1)"), all.rfind(".BR allot\\-bench (1)"));
  EXPECT_THAT(all, Not(HasSubstr("tuner")));
  forms.push_back({.name = "eval", .summary = "in another executable"});
  EXPECT_THAT(manual_of_all(forms, "1"),
              AllOf(HasSubstr("in another executable"), Not(HasSubstr("allot\\-eval"))));
}

TEST(ManualPage, NeedsKnownOptions) {
  const std::vector<CommandDescription> unknown = {{.name = "eval", .summary = "score it"}};
  EXPECT_THROW(manual_of_command(unknown, "1"), std::logic_error);
}

TEST(CommandDescription, GoesThroughJsonUnchanged) {
  const std::vector<CommandDescription> commands = {example_command("eval"),
                                                    {.name = "worker", .summary = "far"}};
  const std::string lines = to_json_line(commands[0]) + to_json_line(commands[1]);
  EXPECT_EQ(read_json_lines(lines, "there"), commands);
}

TEST(CommandDescription, LinesThatDescribeNoCommandAreRefused) {
  for (const char* wrong : {"usage: …\n", "{}\n", "[1]\n"})
    EXPECT_THROW(read_json_lines(wrong, "there"), CorruptFile) << wrong;
  std::string dangling = to_json_line(example_command("eval"));
  dangling.replace(dangling.find("\"positionals\":[\"total\"]"), 23, "\"positionals\":[\"other\"]");
  EXPECT_THROW(read_json_lines(dangling, "there"), CorruptFile);
}

}  // namespace
}  // namespace allot::app
