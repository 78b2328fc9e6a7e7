#include "base/device.h"

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

}  // namespace allot
