// allot worker: scores schedules for an aggregator with the real model.
#include <memory>
#include <string>
#include <thread>

#include "app/cli/command.h"
#include "app/run/devices.h"
#include "app/run/worker_command.h"
#include "base/clock.h"
#include "base/device.h"
#include "model/cuda_devices.h"
#include "wire/messages.pb.h"
#include "worker/spec_runner.h"

namespace allot::app {

int run_worker(std::span<const std::string> arguments) {
  const SystemClock clock;
  const auto device_of = [](const WorkerOptions& options) -> WorkerDevice {
    const Device device = parse_device(options.device);
    WorkerDevice place{describe(device, model::find_cuda_devices)};
    if (device.kind == Device::Kind::kCuda)
      place.memory_use = [device] {
        MemoryUse sum;
        for (int32_t i = 0; i < device.count; ++i) {
          const MemoryUse one = model::cuda_memory(device.index + i);
          sum.used += one.used;
          sum.total += one.total;
        }
        return sum;
      };
    return place;
  };
  return run_worker_command(arguments, device_of,
                            [&](const wire::RunSpec& spec, const WorkerOptions& options) {
                              return worker::make_spec_runner(spec,
                                                              {.device = options.device,
                                                               .threads = options.threads,
                                                               .max_sequences = options.max_sequences,
                                                               .grader = options.grader},
                                                              clock);
                            });
}

}  // namespace allot::app
