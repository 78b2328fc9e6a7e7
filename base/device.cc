#include "base/device.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/ascii.h"
#include "base/error.h"

namespace allot {

std::string Device::name() const {
  if (kind == Kind::kCpu) return "cpu";
  const std::string first = "cuda:" + std::to_string(index);
  return count == 1 ? first : first + "-" + std::to_string(index + count - 1);
}

namespace {

std::optional<uint16_t> parse_index(std::string_view text) {
  uint16_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return index;
}

bool overlap(const Device& a, const Device& b) {
  return a.kind == b.kind && a.index < b.index + b.count && b.index < a.index + a.count;
}

}  // namespace

Device parse_device(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") return {};
  if (text == kCuda) return {.kind = Device::Kind::kCuda};
  if (text.starts_with("cuda:")) {
    const std::string_view numbers = text.substr(kCuda.size() + 1);
    const size_t dash = numbers.find('-');
    const std::optional<uint16_t> first = parse_index(numbers.substr(0, dash));
    if (first && dash == numbers.npos) return {.kind = Device::Kind::kCuda, .index = *first};
    const std::optional<uint16_t> last =
        dash == numbers.npos ? std::nullopt : parse_index(numbers.substr(dash + 1));
    if (first && last && *first < *last) {
      return {.kind = Device::Kind::kCuda, .index = *first, .count = *last - *first + 1};
    }
  }
  throw InvalidArgument(
      "device \"" + std::string(text) +
      "\" is unknown; expected cpu, cuda, cuda:N, or cuda:A-B for a model over several devices");
}

std::vector<Device> parse_device_list(std::string_view text) {
  std::vector<Device> devices;
  for (const std::string_view entry : entries_of(text)) {
    const Device device = parse_device(entry);
    const auto other = std::ranges::find_if(devices, [&](const Device& one) { return overlap(one, device); });
    if (other != devices.end()) {
      throw InvalidArgument("device " + device.name() + " is listed twice" +
                            (*other == device ? "" : ", once in " + other->name()) +
                            "; list each device once");
    }
    devices.push_back(device);
  }
  return devices;
}

}  // namespace allot
