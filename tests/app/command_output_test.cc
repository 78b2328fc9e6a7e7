#include "app/cli/command_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ThrowsMessage;

TEST(CommandOutput, IsWhatTheProgramWroteHoweverLong) {
  EXPECT_EQ(output_of({"/bin/echo", "two words", "three"}), "two words three\n");
  EXPECT_EQ(output_of({"/bin/sh", "-c", "head -c 300000 /dev/zero"}), std::string(300000, '\0'));
}

TEST(CommandOutput, LeavesStandardInputEmptyAndStandardErrorAlone) {
  EXPECT_EQ(output_of({"/bin/sh", "-c", "cat; echo said aside >&2; echo end"}), "end\n");
}

TEST(CommandOutput, OfAProgramThatFailsIsAnErrorNamingTheCommand) {
  EXPECT_THAT(
      [] {
        (void)output_of({"/bin/sh", "-c", "exit 3"});
      },
      ThrowsMessage<Error>(Names("/bin/sh -c exit 3", "code 3")));
  EXPECT_THAT(
      [] {
        (void)output_of({"/bin/sh", "-c", "kill -9 $$"});
      },
      ThrowsMessage<Error>(Names("signal", 9)));
  EXPECT_THAT(
      [] {
        (void)output_of({"/nowhere/allot-model", "devices"});
      },
      ThrowsMessage<Error>(Names("/nowhere/allot-model", "No such file or directory")));
}

}  // namespace
}  // namespace allot::app
