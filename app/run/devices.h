// How commands name, list and choose devices. The executable that runs models says which devices a machine
// has (`allot-model devices --json`), because `allot` itself is built without CUDA.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.h"
#include "model/cuda_devices.h"

namespace allot::app {

using FindCudaDevices = std::function<model::CudaDevices()>;
using CheckCudaDevice = std::function<model::CudaCheck(int32_t index)>;

// "cuda:0 NVIDIA H200, 139 GiB"; whole GiB, rounded down.
std::string describe(const model::CudaDevice& device);
// "cpu, 16 cores".
std::string describe_cpu(uint32_t cores);

// The given CUDA device, which is no range, among those found. Throws Unsupported, naming what was found,
// when it is missing.
const model::CudaDevice& require_cuda_device(const Device& device, const model::CudaDevices& found);

// The same of any device, the CPU with all its cores, a range as "cuda:0-1 (cuda:0 NVIDIA H200, 139 GiB; …)".
// `find` is called only for a CUDA device. Throws what require_cuda_device throws.
std::string describe(const Device& device, const FindCudaDevices& find);

// The devices that `list` names: "all" = every CUDA device found, else a list as parse_device_list reads it.
// `find` is called only when CUDA devices are asked for. Throws Unsupported, naming what was found, when
// "all" finds none or a listed device is missing, and what parse_device_list throws.
std::vector<Device> choose_devices(std::string_view list, const FindCudaDevices& find);

// The command `devices`: the CPU and the CUDA devices, or why there are none, as lines or as one JSON object.
// With --check DEVICE it says whether that device works, and throws what require_cuda_device and `check`
// throw when it does not. A device that other processes have taken passes, because the check may run beside a
// worker that uses all of it.
int run_devices_command(std::span<const std::string> arguments, const FindCudaDevices& find,
                        const CheckCudaDevice& check);

// The devices that `program devices --json` finds. Throws Error when it fails or answers something else.
model::CudaDevices ask_for_cuda_devices(const std::string& program);

}  // namespace allot::app
