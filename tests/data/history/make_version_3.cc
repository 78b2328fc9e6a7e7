// Writes version_3.sqlite: half_run.h with what schema version 3 added, partial credit. README.md beside it
// says how to build this against the release that wrote version 3.
#include "half_run.h"

int main(int argc, char** argv) {
  using namespace allot;
  using namespace allot::aggregator;
  if (argc != 2) return 2;
  HalfRun run;
  CoreDriver& driver = run.driver();
  for (const char* worker : {"a", "b", "a"})  // episode 0 is given up
    driver.fail(worker, run.next(worker), "out of memory");
  run.answer_three_in_time_and_one_late();
  driver.release("a", run.next("a"), {1, 2});  // preempted; two answers are kept
  driver.control(wire::Control::ACTION_EPISODES, 8);
  wire::EpisodeResult graded = result_of(run.next("b"), 1);  // the two missing answers
  graded.mutable_outcomes(1)->set_score(0.25);
  driver.answer("b", graded);
  run.restart_and_answer();
  driver.release("b", run.next("b"), {0});
  run.end_in(argv[1]);
  return 0;
}
