// What the histories of all old schema versions hold: a run of tests/aggregator/example_spec.h by two workers
// that stops in the middle of its learning stage. Each version's maker adds the records that are new in it.
// It is compiled beside the sources of the release that wrote the version, so it uses nothing of the driver
// that the first release lacks.
#pragma once

#include <string>

#include "aggregator/sqlite.h"
#include "tests/aggregator/core_driver.h"

namespace allot::aggregator {

class HalfRun {
 public:
  HalfRun() { introduce(); }

  CoreDriver& driver() { return driver_; }
  // A lease of the next episode.
  wire::Lease next(const char* worker) { return driver_.leases(worker, 1).at(0); }

  // Three episodes told in time, and one after another worker has got its lease.
  void answer_three_in_time_and_one_late() {
    for (int correct = 0; correct < 3; ++correct) driver_.answer("a", result_of(next("a"), correct));
    const wire::Lease late = next("a");
    driver_.clock().advance(Duration{60'000});
    driver_.tick();  // expired
    const wire::Lease superseded = next("b");
    driver_.answer("a", result_of(late, 4));        // late; b's lease is superseded
    driver_.answer("b", result_of(superseded, 4));  // duplicate
  }

  // A second start of the aggregator, and an episode told to it.
  void restart_and_answer() {
    driver_.crash();
    introduce();
    driver_.answer("b", result_of(next("b"), 2));
  }

  // Copies the history to `file` with two leases held.
  void end_in(const std::string& file) {
    (void)driver_.leases("a", 2);
    Database(driver_.file(), Database::Mode::kReadOnly).execute("VACUUM INTO '" + file + "'");
  }

 private:
  void introduce() {
    for (const char* worker : {"a", "b"}) driver_.hello(worker);
  }

  CoreDriver driver_{Storage::kSqlite, example_spec()};
};

}  // namespace allot::aggregator
