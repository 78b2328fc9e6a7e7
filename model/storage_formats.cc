#include "model/storage_formats.h"

#include <spdlog/fmt/fmt.h>

#include <string_view>

#include "base/error.h"
#include "kernels/split_keys.h"

namespace allot::model {
namespace {

void require_one_gpu(std::string_view what, std::string_view format, std::string_view usual,
                     const Device& device) {
  if (device.kind == Device::Kind::kCpu) {
    throw Unsupported(
        fmt::format("{0} {1} have CUDA kernels only, and the device is {2}; use {0} {3}, or another device",
                    what, format, device.name(), usual));
  }
  if (device.count > 1) {
    throw Unsupported(fmt::format(
        "{0} {1} are for a model on one GPU, and this one is on the {2} of {3}; use {0} {4}, or one device",
        what, format, device.count, device.name(), usual));
  }
}

}  // namespace

void require_formats(WeightStorage weights, kernels::KeyFormat keys, const Device& device) {
  constexpr auto kWeights = WeightStorage::kDtype;
  constexpr auto kKeys = kernels::KeyFormat::kSixteenBits;
  if (weights != kWeights) require_one_gpu("weights", name(weights), name(kWeights), device);
  if (keys != kKeys) require_one_gpu("keys", kernels::name(keys), kernels::name(kKeys), device);
}

void require_simulation(const kernels::CacheFormats& formats, int32_t head_dim, const Device& device) {
  using kernels::CacheFormat;
  if (!formats.any()) return;
  if (device.kind != Device::Kind::kCpu) {
    throw Unsupported(
        fmt::format("a cache of {} is simulated on the CPU only, and the device is {}; use --device cpu",
                    kernels::name(formats), device.name()));
  }
  for (const CacheFormat format : {formats.keys, formats.values}) {
    if (!kernels::splits(format) || kernels::can_split(head_dim)) continue;
    throw Unsupported(
        fmt::format("a cache of {} is for heads of a power of two from 8 to 256 elements, and the model's "
                    "have {}; use another format",
                    kernels::name(formats), head_dim));
  }
}

}  // namespace allot::model
