#include "base/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot {
namespace {

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

TEST(Device, MayBeARangeOfCudaDevices) {
  EXPECT_EQ(parse_device("cuda:2-5"), (Device{.kind = Device::Kind::kCuda, .index = 2, .count = 4}));
  EXPECT_EQ(parse_device("cuda:2-5").name(), "cuda:2-5");
}

TEST(Device, ThatIsUnknownIsRefusedByName) {
  for (const char* text : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:1x", "cuda:70000", "cpu:0", "cuda:1-",
                           "cuda:2-2", "cuda:3-2", "cuda:0-1-2", "cuda:0-70000", "cpu:0-1"}) {
    EXPECT_THAT(
        [&] { (void)parse_device(text); },
        ThrowsMessage<InvalidArgument>(Names("\"" + std::string(text) + "\"", "cpu", "cuda", "cuda:N")));
  }
}

TEST(DeviceList, KeepsItsOrder) {
  EXPECT_EQ(parse_device_list("cuda:2,cpu,cuda"),
            (std::vector{parse_device("cuda:2"), parse_device("cpu"), parse_device("cuda:0")}));
  EXPECT_EQ(parse_device_list("cpu"), std::vector{Device{}});
}

TEST(DeviceList, NamesADeviceThatIsUnknownOrListedTwice) {
  for (const char* text : {"", ",", "cpu,", ",cpu", "cuda:0,,cuda:1"}) {
    EXPECT_THAT([&] { (void)parse_device_list(text); },
                ThrowsMessage<InvalidArgument>(Names("device", "\"\"")))
        << text;
  }
  EXPECT_THAT([] { (void)parse_device_list("cpu,all"); },
              ThrowsMessage<InvalidArgument>(Names("device", "\"all\"")));
  EXPECT_THAT([] { (void)parse_device_list("cuda,cpu,cuda:0"); },
              ThrowsMessage<InvalidArgument>(Names("cuda:0", "twice")));
  EXPECT_THAT([] { (void)parse_device_list("cuda:0-1,cuda:2-3,cuda:1-2"); },
              ThrowsMessage<InvalidArgument>(Names("cuda:1-2", "twice", "cuda:0-1")));
  EXPECT_EQ(parse_device_list("cuda:2-3,cuda:0-1"),
            (std::vector{parse_device("cuda:2-3"), parse_device("cuda:0-1")}));
}

}  // namespace
}  // namespace allot
