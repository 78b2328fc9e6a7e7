#include "model/backend.h"

#include <numeric>
#include <vector>

#include "base/device.h"
#include "base/error.h"
#include "model/cpu_backend.h"
#ifdef ALLOT_WITH_CUDA
#include "model/cuda/cuda_backend.h"
#endif

namespace allot::model {

std::unique_ptr<Backend> make_backend(const WeightsSource& source, const ModelConfig& config,
                                      const EngineOptions& options) {
  const Device device = parse_device(options.device);
  if (device.kind == Device::Kind::kCpu) return make_cpu_backend(source, config, options);
#ifdef ALLOT_WITH_CUDA
  std::vector<int> numbers(static_cast<size_t>(device.count));
  std::iota(numbers.begin(), numbers.end(), device.index);
  return make_cuda_backend(source, config, options, numbers);
#else
  throw Unsupported("device " + device.name() + ": this build has no CUDA; configure with the preset gpu");
#endif
}

}  // namespace allot::model
