#include "bench/kernel_profile.h"

#include <gtest/gtest.h>

namespace allot::bench {
namespace {

TEST(ShortKernelName, LosesReturnTypeAnonymousNamespacesAndArguments) {
  EXPECT_EQ(short_kernel_name("_ZN5allot7kernels4cuda12_GLOBAL__N_15scoreILi8ELb1EEEvPfS4_"),
            "allot::kernels::cuda::score");
  EXPECT_EQ(short_kernel_name("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT"),
            "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNT");
  EXPECT_EQ(short_kernel_name("_Z5plainPf"), "plain");
}

TEST(BusyTime, CountsTimeInWhichSeveralKernelsRanOnceAndPausesNot) {
  EXPECT_EQ(busy_time({}).whole_seconds, 0);
  // 100 to 180 without a pause, one kernel inside another, then a pause of 20.
  const BusyTime time = busy_time({{200, 250}, {100, 150}, {110, 120}, {140, 180}});
  EXPECT_DOUBLE_EQ(time.busy_seconds, 130e-9);
  EXPECT_DOUBLE_EQ(time.whole_seconds, 150e-9);
}

}  // namespace
}  // namespace allot::bench
