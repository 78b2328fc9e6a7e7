#include "app/run/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <thread>

#include "app/cli/command_output.h"
#include "app/cli/options.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::app {
namespace {

Device device_of(const model::CudaDevice& device) {
  return {.kind = Device::Kind::kCuda, .index = device.index};
}

std::string product_and_memory(const model::CudaDevice& device) {
  return fmt::format("{}, {} GiB", device.product, device.memory_bytes >> 30);
}

// The devices of a range one by one.
std::vector<Device> each_of(const Device& device) {
  std::vector<Device> devices;
  for (int32_t i = 0; i < device.count; ++i) {
    devices.push_back({.kind = device.kind, .index = device.index + i});
  }
  return devices;
}

// "no CUDA device (why)" or the devices.
std::string describe_all(const model::CudaDevices& found) {
  if (found.devices.empty()) return "no CUDA device (" + found.reason + ")";
  std::string text;
  for (const model::CudaDevice& device : found.devices) text += (text.empty() ? "" : "; ") + describe(device);
  return text;
}

std::string cores_text(uint32_t cores) {
  return fmt::format("{} {}", cores, cores == 1 ? "core" : "cores");
}

nlohmann::json to_json(const model::CudaDevices& found, uint32_t cores) {
  nlohmann::json devices = nlohmann::json::array();
  devices.push_back({{"device", "cpu"}, {"cores", cores}});
  for (const model::CudaDevice& device : found.devices) {
    devices.push_back({{"device", device_of(device).name()},
                       {"product", device.product},
                       {"memory_bytes", device.memory_bytes}});
  }
  return {{"devices", devices}, {"no_cuda_because", found.reason}};
}

model::CudaDevices from_json(const nlohmann::json& json) {
  model::CudaDevices found;
  for (const auto& entry : json.at("devices")) {
    const Device device = parse_device(entry.at("device").get<std::string>());
    if (device.kind == Device::Kind::kCpu) continue;
    found.devices.push_back({.index = device.index,
                             .product = entry.at("product").get<std::string>(),
                             .memory_bytes = entry.at("memory_bytes").get<int64_t>()});
  }
  found.reason = json.at("no_cuda_because").get<std::string>();
  return found;
}

// What --check prints. The CPU obviously works when this line is printed.
std::string check_line(const std::string& name, const FindCudaDevices& find, const CheckCudaDevice& check) {
  Device device;
  try {
    device = parse_device(name);
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string("--check: ") + error.what());
  }
  const std::string described = describe(device, find);
  if (device.kind == Device::Kind::kCpu) return described + ": works";
  for (const Device& one : each_of(device)) {
    if (check(one.index) == model::CudaCheck::kTaken) {
      return described + ": not checked, other processes have taken " +
             (device.count == 1 ? "it" : one.name());
    }
  }
  return described + ": works";
}

}  // namespace

std::string describe(const model::CudaDevice& device) {
  return device_of(device).name() + " " + product_and_memory(device);
}

std::string describe_cpu(uint32_t cores) {
  return "cpu, " + cores_text(cores);
}

const model::CudaDevice& require_cuda_device(const Device& device, const model::CudaDevices& found) {
  const auto match = std::ranges::find(found.devices, device, device_of);
  if (match != found.devices.end()) return *match;
  throw Unsupported("device " + device.name() + " is not here; found: " + describe_all(found));
}

std::vector<Device> choose_devices(std::string_view list, const FindCudaDevices& find) {
  std::vector<Device> devices;
  if (list == "all") {
    const model::CudaDevices found = find();
    if (found.devices.empty()) {
      throw Unsupported("devices \"all\" are the CUDA devices of this machine, but found: " +
                        describe_all(found) + "; device cpu runs without CUDA");
    }
    for (const model::CudaDevice& device : found.devices) devices.push_back(device_of(device));
    return devices;
  }
  devices = parse_device_list(list);
  const auto is_cuda = [](const Device& device) { return device.kind == Device::Kind::kCuda; };
  if (std::ranges::any_of(devices, is_cuda)) {
    const model::CudaDevices found = find();
    for (const Device& device : devices) {
      if (!is_cuda(device)) continue;
      for (const Device& one : each_of(device)) (void)require_cuda_device(one, found);
    }
  }
  return devices;
}

std::string describe(const Device& device, const FindCudaDevices& find) {
  if (device.kind == Device::Kind::kCpu) return describe_cpu(std::thread::hardware_concurrency());
  const model::CudaDevices found = find();
  if (device.count == 1) return describe(require_cuda_device(device, found));
  std::string text;
  for (const Device& one : each_of(device)) {
    text += (text.empty() ? "" : "; ") + describe(require_cuda_device(one, found));
  }
  return device.name() + " (" + text + ")";
}

int run_devices_command(std::span<const std::string> arguments, const FindCudaDevices& find,
                        const CheckCudaDevice& check) {
  bool json = false;
  std::string checked;
  OptionSet set("devices", "list the devices that models can run on here", "allot devices");
  set.flag("json", &json, "print one JSON object");
  set.text("check", &checked, "DEVICE",
           "only test cpu, cuda, cuda:N or cuda:A-B with a tiny operation; fails when its result is wrong");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (!checked.empty()) {
    if (json) throw UsageError("--check prints a line, so it does not go with --json; give one of them");
    std::cout << check_line(checked, find, check) << '\n';
    return 0;
  }
  const uint32_t cores = std::thread::hardware_concurrency();
  const model::CudaDevices found = find();
  if (json) {
    std::cout << to_json(found, cores).dump() << '\n';
    return 0;
  }
  std::cout << fmt::format("{:<8}{}\n", "cpu", cores_text(cores));
  for (const model::CudaDevice& device : found.devices) {
    std::cout << fmt::format("{:<8}{}\n", device_of(device).name(), product_and_memory(device));
  }
  if (found.devices.empty()) std::cout << describe_all(found) << '\n';
  return 0;
}

model::CudaDevices ask_for_cuda_devices(const std::string& program) {
  const std::string answer = output_of({program, "devices", "--json"});
  try {
    return from_json(nlohmann::json::parse(answer));
  } catch (const std::exception& error) {
    throw Error(program + " devices --json answered \"" + answer +
                "\", which cannot be read: " + error.what() + "; build both programs from one source");
  }
}

}  // namespace allot::app
