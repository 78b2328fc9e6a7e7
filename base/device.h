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

  // "cpu" or "cuda:N".
  std::string name() const;
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", "cuda" (= "cuda:0") or "cuda:N". Whether there is such a device is not asked. Throws InvalidArgument
// for any other text.
Device parse_device(std::string_view text);

// A comma list of such names, in its order: "cuda:0,cuda:2,cpu". Throws InvalidArgument for a name that
// parse_device refuses and for a device that is listed twice.
std::vector<Device> parse_device_list(std::string_view text);

}  // namespace allot
