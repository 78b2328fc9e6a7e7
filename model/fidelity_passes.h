// The passes behind Engine::fidelity: which texts share one, what stays on the device between them, what is
// compared. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"
#include "model/engine_options.h"
#include "model/fidelity.h"
#include "model/kv_cache.h"

namespace allot::model {

// The fidelity of every pair, in their order. Texts are taken in groups whose states fit in memory: first
// their exact passes, then those of their pairs, then logits of both, block by block. Uses free pages of
// `allocator`. Requires pairs that Engine::fidelity has checked. Throws InvalidArgument when requests in
// flight leave too few pages for a text, Error when a logit is not a finite number.
std::vector<Fidelity> measure_fidelity(Backend& backend, PageAllocator& allocator,
                                       const EngineOptions& engine, int32_t num_layers,
                                       std::span<const FidelityText> texts,
                                       std::span<const FidelityPair> pairs, const FidelityOptions& options);

}  // namespace allot::model
