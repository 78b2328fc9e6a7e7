// On which devices engines keep weights and keys with fewer bits than their dtype. Torch-free.
#pragma once

#include "base/device.h"
#include "kernels/cache_format.h"
#include "kernels/key_format.h"
#include "model/weight_storage.h"

namespace allot::model {

// Throws Unsupported, naming format, device and what to use instead, where no engine on `device` has weights
// or keys so: the CPU has neither in 8 bits, nor has a model that is spread over several GPUs. Whether the
// GPU itself has the instructions is asked where the engine is made.
void require_formats(WeightStorage weights, kernels::KeyFormat keys, const Device& device);

// Throws Unsupported, naming what was asked for and what to use instead, where no engine on `device` can
// simulate a cache with these formats for heads of head_dim.
void require_simulation(const kernels::CacheFormats& formats, int32_t head_dim, const Device& device);

}  // namespace allot::model
