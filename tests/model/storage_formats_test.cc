// Where weights and keys have fewer bits than the dtype.
#include "model/storage_formats.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::KeyFormat;

std::string refusal(WeightStorage weights, KeyFormat keys, const char* device) {
  return message_of<Unsupported>([&] { require_formats(weights, keys, parse_device(device)); });
}

TEST(StorageFormats, OfEightBitsAreForAModelOnOneGpu) {
  for (const WeightStorage weights : {WeightStorage::kFp8, WeightStorage::kFp8AndLogits}) {
    EXPECT_NO_THROW(require_formats(weights, KeyFormat::kSixteenBits, parse_device("cuda:3")));
    EXPECT_THAT(refusal(weights, KeyFormat::kSixteenBits, "cpu"),
                Names("weights", name(weights), "cpu", "dtype"));
    EXPECT_THAT(refusal(weights, KeyFormat::kSixteenBits, "cuda:2-3"),
                Names("weights", name(weights), 2, "cuda:2-3", "dtype"));
  }
  for (const KeyFormat keys : {KeyFormat::kSplit, KeyFormat::kHighPlane}) {
    EXPECT_NO_THROW(require_formats(WeightStorage::kFp8, keys, parse_device("cuda:3")));
    EXPECT_THAT(refusal(WeightStorage::kDtype, keys, "cpu"),
                Names("keys", kernels::name(keys), "cpu", "16-bit"));
    EXPECT_THAT(refusal(WeightStorage::kDtype, keys, "cuda:0-3"),
                Names("keys", kernels::name(keys), 4, "cuda:0-3", "16-bit"));
  }
}

TEST(StorageFormats, OfTheDtypeAreForEveryDevice) {
  for (const char* device : {"cpu", "cuda", "cuda:0-7"})
    EXPECT_NO_THROW(require_formats(WeightStorage::kDtype, KeyFormat::kSixteenBits, parse_device(device)));
}

TEST(StorageFormats, AreSimulatedOnTheCpuForHeadsThatTheyAreFor) {
  const auto refused = [](const char* formats, int32_t head_dim, const char* device) {
    return message_of<Unsupported>(
        [&] { require_simulation(kernels::parse_cache_formats(formats), head_dim, parse_device(device)); });
  };
  EXPECT_THAT(refused("fp8/int8", 64, "cuda:1"), Names("fp8/int8", "CPU", "cuda:1", "--device", "cpu"));
  EXPECT_THAT(refused("split", 96, "cpu"), Names("split/dtype", 96, 8, 256));
  EXPECT_THAT(refused("int8/high", 96, "cpu"), Names("int8/high", 96));
  for (const char* formats : {"fp8/int8", "bfloat16", "dtype/fp8-scaled"})
    EXPECT_NO_THROW(require_simulation(kernels::parse_cache_formats(formats), 96, parse_device("cpu")));
  EXPECT_NO_THROW(require_simulation(kernels::parse_cache_formats("split/high"), 64, parse_device("cpu")));
  EXPECT_NO_THROW(require_simulation({}, 96, parse_device("cuda"))) << "nothing to simulate";
}

}  // namespace
}  // namespace allot::model
