// The device a model runs on, as options and messages name it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace allot {

struct Device {
  enum class Kind { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int32_t index = 0;  // of a CUDA device, as the driver counts them
  int32_t count = 1;  // CUDA devices from there on, over which a model is spread

  // "cpu", "cuda:N" or "cuda:A-B".
  std::string name() const;
  friend bool operator==(const Device&, const Device&) = default;
};

// Reads "cpu", "cuda" (= "cuda:0"), "cuda:N", or "cuda:A-B" with A < B for the devices A to B as one; does
// not check that such a device exists. Throws InvalidArgument for any other text.
Device parse_device(std::string_view text);

// Reads a comma-separated list of such names and keeps its order: "cuda:0,cuda:2,cpu". Throws InvalidArgument
// for a name that parse_device refuses and for a device that is listed twice, by itself or in a range.
std::vector<Device> parse_device_list(std::string_view text);

}  // namespace allot
