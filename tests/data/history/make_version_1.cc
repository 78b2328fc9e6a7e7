// Writes version_1.sqlite: the history of a run of tests/aggregator/example_spec.h in the middle of its
// learning stage, with every kind of record that schema version 1 has. README.md beside it says how to build
// this against the release that wrote version 1.
#include <utility>

#include "aggregator/sqlite.h"
#include "tests/aggregator/core_driver.h"

int main(int argc, char** argv) {
  using namespace allot;
  using namespace allot::aggregator;
  if (argc != 2) return 2;
  CoreDriver driver(Storage::kSqlite, example_spec());
  const auto next = [&](const char* worker) { return driver.leases(worker, 1).at(0); };
  const auto fail = [&](const char* worker) {
    const wire::Lease lease = next(worker);
    wire::EpisodeResult error;
    error.set_lease(lease.lease());
    error.set_episode(lease.episode());
    error.set_error("out of memory");
    driver.answer(worker, error);
  };
  driver.hello("a");
  driver.hello("b");
  for (int attempt = 0; attempt < 3; ++attempt) fail("a");  // episode 0 is set aside
  for (int correct = 0; correct < 3; ++correct) driver.answer("a", result_of(next("a"), correct));
  const wire::Lease late = next("a");
  driver.clock().advance(Duration{60'000});
  driver.tick();  // expired
  const wire::Lease superseded = next("b");
  driver.answer("a", result_of(late, 4));        // late; b's lease is superseded
  driver.answer("b", result_of(superseded, 4));  // duplicate
  wire::Envelope release;
  release.mutable_release()->add_leases(next("a").lease());
  driver.send("a", std::move(release));
  wire::EpisodeResult short_of_one = result_of(next("b"), 1);
  short_of_one.mutable_outcomes()->RemoveLast();
  driver.answer("b", short_of_one);  // rejected
  driver.crash();
  driver.hello("a");
  driver.hello("b");
  driver.answer("b", result_of(next("b"), 2));
  (void)driver.leases("a", 2);  // held when the history ends
  Database(driver.file(), Database::Mode::kReadOnly).execute("VACUUM INTO '" + std::string(argv[1]) + "'");
  return 0;
}
