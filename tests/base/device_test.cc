#include "base/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace allot {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Device, IsTheCpuOrACudaDeviceByNumber) {
  EXPECT_EQ(parse_device("cpu"), Device{});
  EXPECT_EQ(parse_device("cuda"), (Device{.kind = Device::Kind::kCuda, .index = 0}));
  EXPECT_EQ(parse_device("cuda:7"), (Device{.kind = Device::Kind::kCuda, .index = 7}));
}

TEST(Device, HasANameThatReadsBack) {
  EXPECT_EQ(parse_device("cpu").name(), "cpu");
  EXPECT_EQ(parse_device("cuda").name(), "cuda:0");
  EXPECT_EQ(parse_device("cuda:13").name(), "cuda:13");
}

TEST(Device, ThatIsUnknownIsRefusedByName) {
  for (const char* text : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:1x", "cuda:70000", "cpu:0"}) {
    EXPECT_THAT([&] { (void)parse_device(text); },
                ThrowsMessage<InvalidArgument>(HasSubstr("device \"" + std::string(text) +
                                                         "\" is unknown; expected cpu, cuda or cuda:N")));
  }
}

}  // namespace
}  // namespace allot
