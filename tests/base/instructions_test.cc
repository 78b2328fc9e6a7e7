#include "base/instructions.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace allot {
namespace {

// The variable is read once in a program, so each case is a program of its own that ends with what it read.
[[noreturn]] void end_with_allowed(const char* text) {
  ::setenv("ALLOT_MAX_INSTRUCTIONS", text, 1);
  std::_Exit(10 + static_cast<int>(allowed_instructions()) + (has_avx512() ? 100 : 0));
}
[[noreturn]] void end_with_refusal(const char* text) {
  ::setenv("ALLOT_MAX_INSTRUCTIONS", text, 1);
  try {
    (void)allowed_instructions();
  } catch (const InvalidArgument& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(1);
  }
  std::_Exit(0);
}

class InstructionsDeathTest : public ::testing::Test {
 protected:
  InstructionsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(InstructionsDeathTest, AreThoseUpToTheOneThatTheEnvironmentNames) {
  EXPECT_EXIT(end_with_allowed("portable"), ::testing::ExitedWithCode(10), "");
  EXPECT_EXIT(end_with_allowed("avx2"), ::testing::ExitedWithCode(11), "");
}

TEST_F(InstructionsDeathTest, OfAnotherNameAreRefusedWithTheNamesThatAreKnown) {
  EXPECT_EXIT(end_with_refusal("avx1024"), ::testing::ExitedWithCode(1),
              "ALLOT_MAX_INSTRUCTIONS is 'avx1024', expected portable, avx2, avx512 or amx");
  EXPECT_EXIT(end_with_refusal(""), ::testing::ExitedWithCode(1), "is '', expected");
}

}  // namespace
}  // namespace allot
