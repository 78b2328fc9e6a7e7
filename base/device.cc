#include "base/device.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace allot {

std::string Device::name() const {
  return kind == Kind::kCpu ? "cpu" : "cuda:" + std::to_string(index);
}

Device parse_device(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") return {};
  if (text == kCuda) return {.kind = Device::Kind::kCuda};
  if (text.starts_with("cuda:")) {
    const std::string_view number = text.substr(kCuda.size() + 1);
    uint16_t index = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc{} && end == number.data() + number.size())
      return {.kind = Device::Kind::kCuda, .index = index};
  }
  throw InvalidArgument("device \"" + std::string(text) + "\" is unknown; expected cpu, cuda or cuda:N");
}

std::vector<Device> parse_device_list(std::string_view text) {
  std::vector<Device> devices;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const Device device = parse_device(text.substr(start, end - start));
    if (std::ranges::find(devices, device) != devices.end()) {
      throw InvalidArgument("device " + device.name() + " is listed twice; list each device once");
    }
    devices.push_back(device);
    start = end + 1;
  }
  return devices;
}

}  // namespace allot
