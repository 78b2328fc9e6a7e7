#include "app/cli/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>

namespace allot::app {
namespace {

// A product in the middle of which a signal comes may have its stack pointer in the heap; that such a signal
// harms nothing is seen by EvalRun.SaysWhatASignalStoppedAndGoesOn.
TEST(StopSignal, HandlersRunOnAStackOfTheirOwn) {
  (void)watch_stop_signals();
  stack_t stack = {};
  ASSERT_EQ(::sigaltstack(nullptr, &stack), 0);
  EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
  EXPECT_GE(stack.ss_size, size_t{16} << 10);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    ASSERT_EQ(::sigaction(signal, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0) << signal;
    EXPECT_EQ(action.sa_flags & SA_RESTART, 0) << signal;
  }
}

}  // namespace
}  // namespace allot::app
