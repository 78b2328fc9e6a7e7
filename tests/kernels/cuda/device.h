// Where tests of the value kernels run: on the GPU (device_gpu.cc), or on the host, thread by thread, from
// scores of the double-precision reference (device_host.cc). A test that includes this runs in both builds.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/kernels/launch.h"

namespace allot::kernels::testing {

// Skips with the reason where there is nothing to run on.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// As many of `wanted` repeats as there is time for.
size_t device_repeats(size_t wanted);

// Whether it has clusters of blocks, and kernels compiled for them.
bool device_has_clusters();

// Kernels that are asked for: those of the device, those of devices without clusters, or those of a device
// with a single multiprocessor, for which a few rows are many.
enum class KernelsOf { kDevice, kOlderDevices, kOneMultiprocessor };

// The output [num_queries, num_q_heads, head_dim] of a launch with tight bounds, and its rows_read.
std::vector<double> run_on_device(Launch& launch, KernelsOf kernels = KernelsOf::kDevice);

}  // namespace allot::kernels::testing
