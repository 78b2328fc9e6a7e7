// Writes version_2.sqlite: half_run.h with every kind of record that schema version 2 has. README.md beside
// it says how to build this against the release that wrote version 2.
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
  driver.control(wire::Control::ACTION_PAUSE);
  driver.control(wire::Control::ACTION_RESUME);
  driver.control(wire::Control::ACTION_TARGET, 0, 0.9);
  driver.control(wire::Control::ACTION_EPISODES, 8);
  driver.answer("b", result_of(run.next("b"), 1));  // the two missing answers
  run.restart_and_answer();
  driver.release("b", run.next("b"), {0});
  run.end_in(argv[1]);
  return 0;
}
