// Writes version_2.sqlite: the history of a run of tests/aggregator/example_spec.h in the middle of its
// learning stage, with every kind of record that schema version 2 has. README.md beside it says how to build
// this against the release that wrote version 2.
#include <utility>

#include "aggregator/sqlite.h"
#include "tests/aggregator/core_driver.h"

int main(int argc, char** argv) {
  using namespace allot;
  using namespace allot::aggregator;
  if (argc != 2) return 2;
  CoreDriver driver(Storage::kSqlite, example_spec());
  const auto next = [&](const char* worker) { return driver.leases(worker, 1).at(0); };
  driver.hello("a");
  driver.hello("b");
  for (int attempt = 0; attempt < 3; ++attempt)  // episode 0 is given up
    driver.fail(attempt == 1 ? "b" : "a", next(attempt == 1 ? "b" : "a"), "out of memory");
  for (int correct = 0; correct < 3; ++correct) driver.answer("a", result_of(next("a"), correct));
  const wire::Lease late = next("a");
  driver.clock().advance(Duration{60'000});
  driver.tick();  // expired
  const wire::Lease superseded = next("b");
  driver.answer("a", result_of(late, 4));  // late; b's lease is superseded
  driver.answer("b", result_of(superseded, 4));
  driver.release("a", next("a"), {1, 2});  // preempted; two answers are kept
  driver.control(wire::Control::ACTION_PAUSE);
  driver.control(wire::Control::ACTION_RESUME);
  driver.control(wire::Control::ACTION_TARGET, 0, 0.9);
  driver.control(wire::Control::ACTION_EPISODES, 8);
  driver.answer("b", result_of(next("b"), 1));  // the two missing answers
  driver.crash();
  driver.hello("a");
  driver.hello("b");
  driver.answer("b", result_of(next("b"), 2));
  driver.release("b", next("b"), {0});
  (void)driver.leases("a", 2);  // held when the history ends
  Database(driver.file(), Database::Mode::kReadOnly).execute("VACUUM INTO '" + std::string(argv[1]) + "'");
  return 0;
}
