// allot devices: lists the devices that models can run on. `allot tune --devices all` uses it, too.
#include "app/run/devices.h"
#include "app/cli/command.h"
#include "model/cuda_devices.h"

namespace allot::app {

int run_devices(std::span<const std::string> arguments) {
  return run_devices_command(arguments, model::find_cuda_devices, model::check_cuda_device);
}

}  // namespace allot::app
