// The engine's backend on a CUDA device.
#pragma once

#include <memory>
#include <span>

#include "model/backend.h"
#include "model/engine_options.h"
#include "model/model_config.h"
#include "model/weights_source.h"

namespace allot::model {

// Loads the weights to the CUDA device numbered devices[0] and allocates activations and cache there. The
// cache has options.cache_tokens tokens or, where that is 0, as many as all slots can use, but no more than
// the remaining memory holds. A decode step is one CUDA graph, captured when a batch of its size first
// runs. Throws the errors of the readers, CudaError when there is no such device, Unsupported for a
// dtype other than bfloat16, an estimator without CUDA kernel or weights of 8 bits on a device older than
// compute capability 8.9, and Error with the numbers when the
// memory does not suffice.
//
// Over several devices, none of them twice, the model is spread (model_split.h), and each device has the
// pages of its heads, as many as the one with the least memory left holds. Throws the errors of check_split
// and of NcclGroup as well.
std::unique_ptr<Backend> make_cuda_backend(const WeightsSource& source, const ModelConfig& config,
                                           const EngineOptions& options, std::span<const int> devices);

}  // namespace allot::model
