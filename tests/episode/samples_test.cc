#include "episode/samples.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace allot {
namespace {

TEST(Samples, ExactLayersAreNamedAmongNumbers) {
  EXPECT_EQ(layer_text(8), "8");
  EXPECT_EQ(layer_text(kExactLayer), "exact");
  EXPECT_EQ(layers_text(std::vector<int32_t>{kExactLayer, 8, 0, kExactLayer}), "exact,8,0,exact");
  EXPECT_EQ(layers_text({}), "");
}

TEST(Samples, TotalsAreOfTheLayersThatSample) {
  const std::vector<int32_t> mixed = {kExactLayer, 8, 0, 7, kExactLayer};
  EXPECT_EQ(total_samples(mixed), 15);
  EXPECT_EQ(exact_layers(mixed), 2);
  EXPECT_EQ(sampled_layers(mixed), 3);

  const std::vector<int32_t> exact(4, kExactLayer);
  EXPECT_EQ(total_samples(exact), 0);
  EXPECT_EQ(sampled_layers(exact), 0);

  const std::vector<int32_t> huge(2, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(total_samples(huge), int64_t{4294967294});
}

}  // namespace
}  // namespace allot
