// Writes version_1.sqlite: half_run.h with every kind of record that schema version 1 has. README.md beside
// it says how to build this against the release that wrote version 1.
#include <utility>

#include "half_run.h"

int main(int argc, char** argv) {
  using namespace allot;
  using namespace allot::aggregator;
  if (argc != 2) return 2;
  HalfRun run;
  for (int attempt = 0; attempt < 3; ++attempt) {  // episode 0 is set aside
    const wire::Lease lease = run.next("a");
    wire::EpisodeResult error;
    error.set_lease(lease.lease());
    error.set_episode(lease.episode());
    error.set_error("out of memory");
    run.driver().answer("a", error);
  }
  run.answer_three_in_time_and_one_late();
  wire::Envelope release;
  release.mutable_release()->add_leases(run.next("a").lease());
  run.driver().send("a", std::move(release));
  wire::EpisodeResult short_of_one = result_of(run.next("b"), 1);
  short_of_one.mutable_outcomes()->RemoveLast();
  run.driver().answer("b", short_of_one);  // rejected
  run.restart_and_answer();
  run.end_in(argv[1]);
  return 0;
}
