// What the learner of a run learned of layers (policy::LayerCosts), which the history does not hold: a replay
// gives it.
#pragma once

#include <filesystem>
#include <optional>

#include "policy/layer_costs.h"

namespace allot::aggregator {

// Replays the history of `run_directory`, as it is at this moment, into a new learner of its spec, which
// takes as long as the learner itself took. Nothing where the learner knows only shares. Throws NotFound,
// CorruptFile when the history is not one of this learner and spec, as it may be after an upgrade, and
// StorageError.
std::optional<policy::LayerCosts> learned_costs(const std::filesystem::path& run_directory);

}  // namespace allot::aggregator
