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

}  // namespace
}  // namespace allot::bench
