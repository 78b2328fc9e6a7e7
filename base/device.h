// The device a model runs on, as options and messages name it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace allot
