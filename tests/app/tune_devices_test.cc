// On which devices `allot tune` runs its workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/app/tune_run.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Tune, SeveralWorkersShareOneRun) {
  const auto result = run_command(tune({"--workers", "3"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Names("worker-3"));
  expect_whole_run();
}

TEST_F(Tune, AllDevicesGetAWorkerEachAndStatusNamesTheirDevices) {
  ::setenv("ALLOT_SIMULATED_GPUS", "2", 1);
  stop_in_the_middle();
  RunningCommand command(tune({"--devices", "all"}));
  EXPECT_TRUE(command.error_line_with("worker-1 started on cuda:0"));
  EXPECT_TRUE(command.error_line_with("worker-2 started on cuda:1"));
  ASSERT_TRUE(command.error_line_with("20/40"));
  std::map<std::string, std::string> devices;
  // A worker that starts slowly may not have introduced itself yet.
  while (devices.size() < 2) {
    const auto live = run_command({tool(), "status", "--run", run_.string(), "--json"});
    ASSERT_EQ(live.code, 0) << live.err;
    const auto json = nlohmann::json::parse(live.out);
    for (const auto& worker : json.at("workers")) {
      devices[worker.at("worker")] = worker.at("device");
    }
  }
  EXPECT_EQ(devices,
            (std::map<std::string, std::string>{{"worker-1", "simulation on cuda:0 Simulated GPU, 80 GiB"},
                                                {"worker-2", "simulation on cuda:1 Simulated GPU, 80 GiB"}}));
  go_on();
  const auto result = command.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Not(Names("worker-3")));
  expect_whole_run();
}

TEST_F(Tune, DevicesThatAreNotHereAreRefusedBeforeTheRunBegins) {
  const auto none = run_command(tune({"--devices", "all"}));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, Names("devices", "all", "this simulation has none"));
  ::setenv("ALLOT_SIMULATED_GPUS", "1", 1);
  const auto missing = run_command(tune({"--devices", "cpu,cuda:2"}));
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, Names("cuda:2", "cuda:0 Simulated GPU, 80 GiB"));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(Tune, WeightsAndKeysThatADeviceHasNotAreRefusedBeforeTheRunBegins) {
  ::setenv("ALLOT_SIMULATED_GPUS", "2", 1);
  const auto on_cpu = run_command(tune({"--weights", "fp8", "--devices", "cuda:1,cpu"}));
  EXPECT_EQ(on_cpu.code, 1);
  EXPECT_THAT(on_cpu.err, Names("weights", "fp8", "cpu", "dtype"));
  const auto on_two = run_command(tune({"--keys", "split", "--device", "cuda:0-1"}));
  EXPECT_EQ(on_two.code, 1);
  EXPECT_THAT(on_two.err, Names("keys", "split", 2, "cuda:0-1", "16-bit"));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(Tune, DeviceAndDevicesTogetherAreWrongUsage) {
  const auto result = run_command(tune({"--devices", "all", "--device", "cpu"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("--device", "--devices"));
}

TEST_F(Tune, DryRunWithDevicesReadsBackAsAConfig) {
  const auto first = run_command(tune({"--devices", "cuda,cuda:3", "--dry-run"}));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("devices = cuda:0,cuda:3\n"), HasSubstr("device =\n")));
  const auto config = directory_ / "tune.conf";
  write_file_atomically(config, first.out);
  const auto again = run_command({tool(), "tune", "--config", config.string(), "--dry-run"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
}

}  // namespace
}  // namespace allot::app
