// The chaos run of any size as a program; docs/internals/faults.md has the commands and what they gave.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "base/error.h"
#include "base/log.h"
#include "tests/chaos/chaos.h"

namespace allot::chaos {
namespace {

int main_of(const std::vector<std::string>& arguments) {
  ChaosOptions options;
  options.allot = ALLOT_EXECUTABLE;
  options.worker = ALLOT_TEST_PROCESS;
  int64_t seed = 1, lease = options.lease.count(), episode = options.episode.count(), outage = 0;
  app::OptionSet set("chaos", "a run of real processes to which things happen, then an audit of what it left",
                     "allot_chaos --directory /tmp/chaos --seed 1");
  set.path("directory", &options.directory,
           "of the run and its logs; must not exist; removed when all is well");
  set.require("directory");
  set.integer("seed", &seed, 0, 1'000'000'000, "N", "of everything that happens");
  set.integer("episodes", &options.episodes, 10, 10'000'000, "N", "learning episodes");
  set.text("policy", &options.policy, "NAME", "learner");
  set.integer("workers", &options.workers, 1, 1'000, "N", "processes");
  set.integer("capacity", &options.capacity, 1, 64, "N", "episodes a worker holds");
  set.integer("episode-ms", &episode, 0, 60'000, "MS", "that an episode takes a worker");
  set.integer("lease-ms", &lease, 100, 600'000, "MS", "lease time");
  set.integer("aggregator-kills", &options.aggregator_kills, 0, 10'000, "N", "at random instants of the run");
  set.real("worker-faults", &options.worker_faults_per_second, 0, 1'000, "N",
           "workers killed, drained or paused, a second");
  set.integer("outage-s", &outage, 0, 3'600, "S",
              "how long the aggregator stays away after it is killed in the middle");
  set.integer("hosts", &options.hosts, 0, 100, "N",
              "of workers, in network namespaces behind bad cables; 0: all on loopback");
  set.flag("hostile", &options.hostile, "the holder of another worker's key works against the run");
  bool keep = false;
  set.flag("keep", &keep, "leave the directory also when all is well");
  if (set.parse(arguments) == app::OptionSet::Parsed::kDone) return 0;
  options.seed = static_cast<uint64_t>(seed);
  options.lease = Duration{lease};
  options.episode = Duration{episode};
  options.outage = std::chrono::seconds{outage};
  if (std::filesystem::exists(options.directory)) {
    throw UsageError(
        fmt::format("{} is there already; name a directory that is not", options.directory.string()));
  }
  const ChaosReport report = run_chaos(options);
  std::cout << describe(options, report);
  if (!report.faults.empty()) {
    std::cout << fmt::format("the run and its logs are in {}\n", options.directory.string());
    return 1;
  }
  if (!keep) std::filesystem::remove_all(options.directory);
  return 0;
}

}  // namespace
}  // namespace allot::chaos

int main(int argc, char** argv) {
  try {
    allot::set_up_logging("chaos", "warn");
    return allot::chaos::main_of({argv + 1, argv + argc});
  } catch (const allot::Error& error) {
    std::cerr << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
