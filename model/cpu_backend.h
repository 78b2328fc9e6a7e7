// The model on the CPU: decoder.h for the pass, sampling.h for the tokens.
#pragma once

#include <memory>

#include "model/backend.h"
#include "model/collective.h"
#include "model/engine_options.h"
#include "model/model_config.h"
#include "model/model_split.h"
#include "model/weights_source.h"

namespace allot::model {

// Loads the weights, then makes the cache: an automatic one takes at most half of the memory they leave.
// `options` are checked and have their threads resolved. Throws the errors of load_weights and plan_cache.
std::unique_ptr<Backend> make_cpu_backend(const WeightsSource& source, const ModelConfig& config,
                                          const EngineOptions& options);

// One rank of a model that is spread (model_split.h), `config` being that of the whole: for tests of how
// models are spread, on machines without GPUs. `collective` must outlive it.
std::unique_ptr<Backend> make_cpu_rank(const WeightsSource& source, const ModelConfig& config,
                                       const EngineOptions& options, const ModelSplit& split,
                                       Collective& collective);

}  // namespace allot::model
