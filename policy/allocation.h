// The schedule of least total cost when each layer's cost is known by its number of samples.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/bounds.h"
#include "policy/schedule.h"

namespace allot::policy {

// Minimises sum_l costs[l][s_l] over schedules of that total with at least `floor` samples a layer, for costs
// of any shape, by dynamic programming: layers * spread^2 / 2 steps, spread = total - layers * floor. Beyond
// a spread of 512, samples above the floor are dealt in equal lots so that at most 512 lots remain, and the
// remainder where it saves most. `costs` holds rows of total + 1 entries, one row a layer. Ties go to fewer
// samples in later layers. With limits, those of `total` and the floor, only schedules that keep them count,
// and lots lie above the least of each layer. Throws InvalidArgument when total < layers * floor.
Schedule cheapest_schedule(std::span<const double> costs, int layers, int64_t total, int32_t floor,
                           const Limits& limits = {});

// The same for costs that are convex, whatever the total: starts at `least` and gives each sample to the
// layer that saves most by it, by `saved(layer, samples)`, what one more than `samples` saves; never more
// than `most`. Both [layers]; a layer where they are equal stays as it is, exact ones among them. `total`
// lies between their sums. Ties go to the lower layer.
Schedule dealt_schedule(int64_t total, std::span<const int32_t> least, std::span<const int32_t> most,
                        const std::function<double(size_t layer, int32_t samples)>& saved);

}  // namespace allot::policy
