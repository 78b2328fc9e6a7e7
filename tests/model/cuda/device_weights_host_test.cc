// Which devices have products with weights of 8 bits; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/cuda/device_weights.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

TEST(DeviceWeightsHost, OfEightBitsNeedAGpuThatMultipliesThem) {
  for (const WeightStorage storage : {WeightStorage::kFp8, WeightStorage::kFp8AndLogits}) {
    for (const int32_t capability : {89, 90, 100, 120})
      EXPECT_NO_THROW(require_capability(storage, {.compute_capability = capability})) << capability;
    EXPECT_THAT(message_of<Unsupported>([&] { require_capability(storage, {.compute_capability = 86}); }),
                Names(name(storage), "8.9", "8.6", "dtype"));
    EXPECT_THAT(message_of<Unsupported>([&] { require_capability(storage, {.compute_capability = 80}); }),
                Names(name(storage), "8.9", "8.0", "dtype"));
  }
  EXPECT_NO_THROW(require_capability(WeightStorage::kDtype, {.compute_capability = 80}));
}

}  // namespace
}  // namespace allot::model::cuda
