// What a long run costs its aggregator: memory and the time of a restart, in a process of its own.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>

#include "base/temporary_directory.h"
#include "tests/aggregator/child.h"
#include "wire/messages.pb.h"
#include "wire/status_query.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kDeadline = 60s;

// Resident memory in MiB.
double resident_mib(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      double kib = 0;
      status >> kib;
      return kib / 1024;
    }
  }
  return 1e9;
}

TEST(LongHistory, AHistoryOfAHundredThousandEpisodesStartsInSecondsAndStaysSmall) {
  constexpr int64_t kLong = 100'000;
  const std::string program = ALLOT_TEST_PROCESS;
  const TemporaryDirectory directory;
  const std::string run = (directory.path() / "run").string();
  Child grow({program, "grow", run, std::to_string(kLong)});
  ASSERT_EQ(grow.wait(5min), 0);
  const auto started = std::chrono::steady_clock::now();
  Child aggregator({program, "aggregator", run, "tcp://127.0.0.1:*", "0"});
  const std::string endpoint = aggregator.line(kDeadline);
  const std::chrono::duration<double> start_time = std::chrono::steady_clock::now() - started;
  const wire::Status status = wire::query_status(endpoint, kDeadline);
  EXPECT_GE(status.episodes_done(), kLong);
  const double mib = resident_mib(aggregator.pid());
  RecordProperty("start_seconds", fmt::format("{:.2f}", start_time.count()));
  RecordProperty("resident_mib", fmt::format("{:.1f}", mib));
  std::cout << fmt::format("start {:.2f} s, resident {:.1f} MiB\n", start_time.count(), mib);
  EXPECT_LT(mib, 100);
  EXPECT_LT(start_time, 10s);
}

}  // namespace
}  // namespace allot::aggregator
