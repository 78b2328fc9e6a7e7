// What launches use of devices of each compute capability, and of code that was compiled for an older one.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/args.h"
#include "kernels/cuda/code_capability.h"
#include "kernels/cuda/plan.h"
#include "tests/kernels/cuda/plan_launch.h"
#include "tests/kernels/methods.h"

namespace allot::kernels::cuda {
namespace {

struct Device {
  const char* name;
  DeviceLimits limits;
};

// Multiprocessors and the opt-in maximum of shared memory of a block, by the CUDA programming guide's table
// of compute capabilities.
const std::vector<Device> kEveryDevice = {
    {"A100, 8.0", {.compute_capability = 80, .multiprocessors = 108, .shared_bytes_per_block = 163 * 1024}},
    {"RTX A6000, 8.6",
     {.compute_capability = 86, .multiprocessors = 84, .shared_bytes_per_block = 99 * 1024}},
    {"RTX 4090, 8.9",
     {.compute_capability = 89, .multiprocessors = 128, .shared_bytes_per_block = 99 * 1024}},
    {"H100, 9.0", {.compute_capability = 90, .multiprocessors = 132, .shared_bytes_per_block = 227 * 1024}},
    {"B200, 10.0", {.compute_capability = 100, .multiprocessors = 148, .shared_bytes_per_block = 227 * 1024}},
    {"RTX 5090, 12.0",
     {.compute_capability = 120, .multiprocessors = 170, .shared_bytes_per_block = 99 * 1024}},
};

Plan joint_plan(const DeviceLimits& limits) {
  return make_plan(launch({.estimator = Estimator::kJoint, .batch = 6}),
                   {.num_queries = 6, .max_queries = 1, .max_length = 32768, .max_budget = 1024}, limits);
}

TEST(CapabilityPlan, EveryKernelsSharedMemoryIsWithinTheDevices) {
  for (const Device& device : kEveryDevice) {
    for (const Estimator estimator : testing::every_estimator()) {
      for (const int32_t group : {1, 4, 8}) {
        for (const int32_t head_dim : {64, 128, 256}) {
          for (const int32_t length : {1024, 32768, kMaxCudaLength}) {
            const AttentionParams p =
                launch({.estimator = estimator, .batch = 16, .group = group, .head_dim = head_dim});
            const LaunchBounds bounds{.num_queries = 16,
                                      .max_queries = 1,
                                      .max_length = length,
                                      .max_budget = 1024,
                                      .any_dense = true};
            const Plan plan = make_plan(p, bounds, device.limits);
            const int64_t most = device.limits.shared_bytes_per_block;
            const auto where = [&] {
              return std::string(device.name) + ", " + std::string(name(estimator)) + ", " +
                     std::to_string(group) + " heads of " + std::to_string(head_dim) + ", " +
                     std::to_string(length);
            };
            EXPECT_GE(plan.score.warps, 1) << where();
            EXPECT_LE(plan.score.shared_bytes, most) << where();
            EXPECT_LE(plan.exact_decode.shared_bytes, most) << where();
            EXPECT_LE(value_kernel(p, plan.workers).shared_bytes(plan.row_tiles, group, plan.cluster_blocks),
                      most)
                << where();
          }
        }
      }
    }
  }
}

TEST(CapabilityPlan, ClustersAreOfDevicesThatHaveThemAndRoomInTheirSharedMemory) {
  for (const Device& device : kEveryDevice) {
    const bool has = device.limits.compute_capability >= 90;
    EXPECT_EQ(joint_plan(device.limits).workers == Workers::kCluster, has) << device.name;
  }
}

TEST(CapabilityPlan, CodeOfAnOlderDeviceGetsThePlanOfThatDevice) {
  EXPECT_EQ(usable_capability(90, 80), 80) << "code of 8.0, compiled by the driver for 9.0";
  EXPECT_EQ(usable_capability(120, 90), 90) << "code of 9.0, compiled by the driver for 12.0";
  EXPECT_EQ(usable_capability(89, 86), 86) << "machine code of 8.6, which 8.9 runs as it is";
  EXPECT_EQ(usable_capability(90, 90), 90);
  for (const Device& device : kEveryDevice) {
    DeviceLimits limits = device.limits;
    limits.compute_capability = usable_capability(limits.compute_capability, 80);
    EXPECT_EQ(joint_plan(limits).workers, Workers::kBlock) << device.name;
  }
}

TEST(CapabilityPlan, AClusterIsHalvedUntilTheDeviceHasRoomForOne) {
  const auto up_to = [](uint32_t most) { return [most](uint32_t blocks) { return blocks <= most; }; };
  EXPECT_EQ(fitting_cluster(16, up_to(16)), 16u);
  EXPECT_EQ(fitting_cluster(16, up_to(15)), 8u);
  EXPECT_EQ(fitting_cluster(16, up_to(3)), 2u);
  EXPECT_EQ(fitting_cluster(16, up_to(0)), 1u) << "no cluster";
  EXPECT_EQ(fitting_cluster(12, up_to(16)), 8u) << "a power of two";
}

}  // namespace
}  // namespace allot::kernels::cuda
