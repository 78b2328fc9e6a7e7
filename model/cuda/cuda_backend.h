// The engine's backend on a CUDA device.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/engine_options.h"
#include "model/model_config.h"
#include "model/weights_source.h"

namespace allot::model {

// Loads the weights to CUDA device number `device` and allocates activations and cache there. The cache
// has options.cache_tokens tokens or, where that is 0, as many as all slots can use, but no more than
// the remaining memory holds. A decode step is one CUDA graph, captured when a batch of its size first
// runs. Throws the errors of the readers, CudaError when there is no such device, Unsupported for a
// dtype other than bfloat16 or an estimator without CUDA kernel, and Error with the numbers when the
// memory does not suffice.
std::unique_ptr<Backend> make_cuda_backend(const WeightsSource& source, const ModelConfig& config,
                                           const EngineOptions& options, int device);

}  // namespace allot::model
