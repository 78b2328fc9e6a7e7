#include "app/report/run_text.h"

#include <gmock/gmock.h>

#include "tests/names.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

wire::Preflight example() {
  wire::Preflight preflight;
  preflight.set_wanted(32);
  for (const char* label : {"dense", "uniform"}) {
    wire::PreflightSchedule& row = *preflight.add_schedules();
    row.set_label(label);
    row.set_answered(32);
    row.set_correct(24);
    row.set_mean(0.75);
    row.set_cut_off(8);
    row.set_no_answer(16);
    row.set_output_tokens(32 * 50);
  }
  preflight.set_worker_seconds(20);
  return preflight;
}

TEST(RunText, ThePreflightSaysWhatEachScheduleDidAndWhatTheRunWillTake) {
  wire::Preflight preflight = example();
  EXPECT_THAT(preflight_lines(preflight, 1),
              testing::ElementsAre(
                  Names("dense", "24 of 32 right", "75.0%", "25% cut off", "50% without", "50 tokens"),
                  Names("uniform", "24 of 32"), AllOf(HasSubstr("160 tokens/s"), Not(HasSubstr("so")))));
  preflight.set_run_episodes(250);
  preflight.set_run_worker_seconds(600);
  preflight.set_cost(0.5);
  EXPECT_THAT(
      preflight_lines(preflight, 1).back(),
      AllOf(Names("250 episodes", "about 10m 00s of one worker", "cost 0.50"), Not(HasSubstr("workers"))));
  EXPECT_THAT(preflight_lines(preflight, 4).back(), Names("2m 30s of 4 workers"));
  preflight.set_run_worker_seconds_least(60);
  EXPECT_THAT(preflight_lines(preflight, 4).back(),
              Names("take 1m 00s to 10m 00s of one worker", "15s to 2m 30s of 4 workers"));
}

TEST(RunText, ThePreflightsWarningsAndItsReasonComeLast) {
  wire::Preflight preflight = example();
  preflight.add_warnings("few keys");
  preflight.set_stop_reason("nothing to gain");
  EXPECT_THAT(preflight_lines(preflight, 1), SizeIs(5));
  EXPECT_EQ(preflight_lines(preflight, 1)[3], "warning: few keys");
  EXPECT_EQ(preflight_lines(preflight, 1)[4], "stopped: nothing to gain");
  preflight.set_ignored(true);
  EXPECT_EQ(preflight_lines(preflight, 1)[4], "ignored: nothing to gain");
  EXPECT_THAT(preflight_lines({}, 1), IsEmpty());
}

}  // namespace
}  // namespace allot::app
