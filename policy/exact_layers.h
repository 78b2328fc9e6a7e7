// Runs in which some layers have exact attention. A learner sees the other layers alone, numbered without
// them, so that no learner has to know exact layers.
#pragma once

#include <memory>

#include "policy/policy.h"

namespace allot::policy {

// A validated configuration as its learner sees it: layers, bounds and start without the exact layers.
PolicyConfig sampled_part(const PolicyConfig& config);

// A schedule of the layers that sample, with the exact ones of `config` in their places.
Schedule with_exact_layers(const PolicyConfig& config, Schedule sampled);

// Costs of the layers that sample, with nothing for the exact ones of `config`.
LayerCosts with_exact_layers(const PolicyConfig& config, LayerCosts sampled);

// `learner`, which was made of sampled_part(config), for all layers of `config`: schedules have the exact
// layers, descriptions and costs nothing for them. Digest and state are the learner's own.
std::unique_ptr<Policy> with_exact_layers(const PolicyConfig& config, std::unique_ptr<Policy> learner);

}  // namespace allot::policy
