// The schedule of least total cost when each layer's cost is known by its number of samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

// Minimises sum_l costs[l][s_l] over schedules of that total with at least `floor` samples a layer, for costs
// of any shape, by dynamic programming: layers * spread^2 / 2 steps, spread = total - layers * floor. Beyond
// a spread of 512, samples above the floor are dealt in equal lots so that at most 512 lots remain, and the
// remainder where it saves most. `costs` holds rows of total + 1 entries, one row a layer. Ties go to fewer
// samples in later layers. Throws InvalidArgument when total < layers * floor.
Schedule cheapest_schedule(std::span<const double> costs, int layers, int64_t total, int32_t floor);

}  // namespace allot::policy
