// The model on the CPU: decoder.h for the pass, sampling.h for the tokens.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/engine_options.h"
#include "model/model_config.h"
#include "model/weights_source.h"

namespace allot::model {

// Loads the weights, then makes the cache: an automatic one takes at most half of the memory they leave.
// `options` are checked and have their threads resolved. Throws the errors of load_weights and plan_cache.
std::unique_ptr<Backend> make_cpu_backend(const WeightsSource& source, const ModelConfig& config,
                                          const EngineOptions& options);

}  // namespace allot::model
