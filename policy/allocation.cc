#include "policy/allocation.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

#include "base/error.h"

namespace allot::policy {

Schedule cheapest_schedule(std::span<const double> costs, int layers, int64_t total, int32_t floor,
                           const Limits& limits) {
  constexpr int64_t kMostLots = 512;
  const auto count = static_cast<size_t>(layers);
  const std::vector<int32_t> least = limits.empty() ? std::vector<int32_t>(count, floor) : limits.least;
  const int64_t spread = total - std::accumulate(least.begin(), least.end(), int64_t{0});
  if (spread < 0) {
    throw InvalidArgument("cheapest_schedule: " + std::to_string(total) + " samples are less than " +
                          std::to_string(floor) + " in each of " + std::to_string(layers) + " layers");
  }
  const int64_t lot = std::max<int64_t>(1, (spread + kMostLots - 1) / kMostLots);
  // What fits into a layer, in whole lots, and into all.
  const auto room = [&](size_t layer) {
    return limits.empty() ? spread / lot : std::min(spread, int64_t{limits.most[layer]} - least[layer]) / lot;
  };
  int64_t room_in_all = 0;
  for (size_t layer = 0; layer < count; ++layer) room_in_all += room(layer);
  const auto lots = static_cast<size_t>(std::min(spread / lot, room_in_all));
  const auto row_length = static_cast<size_t>(total) + 1;
  const auto cost = [&](size_t layer, int64_t samples) {
    return costs[layer * row_length + static_cast<size_t>(samples)];
  };

  // cheapest[u]: least cost of the layers so far with exactly u lots; choice[layer][u]: lots of the layer
  // then.
  std::vector<double> cheapest(lots + 1, std::numeric_limits<double>::infinity());
  std::vector<double> next(lots + 1);
  std::vector<uint16_t> choice(static_cast<size_t>(layers) * (lots + 1));
  std::vector<double> lot_costs(lots + 1);
  cheapest[0] = 0;
  for (size_t layer = 0; layer < static_cast<size_t>(layers); ++layer) {
    const size_t own_lots = std::min(lots, static_cast<size_t>(room(layer)));
    for (size_t own = 0; own <= own_lots; ++own) {
      lot_costs[own] = cost(layer, least[layer] + static_cast<int64_t>(own) * lot);
    }
    uint16_t* chosen = choice.data() + layer * (lots + 1);
    if (layer == 0) {
      std::ranges::fill(next, std::numeric_limits<double>::infinity());
      for (size_t used = 0; used <= own_lots; ++used) {
        next[used] = lot_costs[used];
        chosen[used] = static_cast<uint16_t>(used);
      }
      cheapest.swap(next);
      continue;
    }
    std::ranges::fill(next, std::numeric_limits<double>::infinity());
    for (size_t own = 0; own <= own_lots; ++own) {
      const double own_cost = lot_costs[own];
      for (size_t used = own; used <= lots; ++used) {
        const double sum = cheapest[used - own] + own_cost;
        const bool better = sum < next[used];
        next[used] = better ? sum : next[used];
        chosen[used] = better ? static_cast<uint16_t>(own) : chosen[used];
      }
    }
    cheapest.swap(next);
  }

  Schedule schedule{least};
  size_t left = lots;
  for (size_t layer = static_cast<size_t>(layers); layer-- > 0;) {
    const size_t own = choice[layer * (lots + 1) + left];
    schedule.samples[layer] += static_cast<int32_t>(static_cast<int64_t>(own) * lot);
    left -= own;
  }
  for (int64_t rest = spread - static_cast<int64_t>(lots) * lot; rest > 0; --rest) {
    size_t winner = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (size_t layer = 0; layer < static_cast<size_t>(layers); ++layer) {
      const int64_t samples = schedule.samples[layer];
      if (!limits.empty() && samples >= limits.most[layer]) continue;
      const double saved = cost(layer, samples) - cost(layer, samples + 1);
      if (saved > most) most = saved, winner = layer;
    }
    ++schedule.samples[winner];
  }
  return schedule;
}

Schedule dealt_schedule(int64_t total, std::span<const int32_t> least, std::span<const int32_t> most,
                        const std::function<double(size_t layer, int32_t samples)>& saved) {
  Schedule schedule{{least.begin(), least.end()}};
  // What a layer's next sample saves, the most first.
  using Gain = std::pair<double, size_t>;
  const auto later = [](const Gain& a, const Gain& b) {
    return a.first < b.first || (a.first == b.first && a.second > b.second);
  };
  std::priority_queue<Gain, std::vector<Gain>, decltype(later)> gains(later);
  const auto offer = [&](size_t layer) {
    const int32_t samples = schedule.samples[layer];
    if (samples < most[layer]) gains.push({saved(layer, samples), layer});
  };
  for (size_t layer = 0; layer < least.size(); ++layer) offer(layer);
  for (int64_t left = total - schedule.total(); left > 0; --left) {
    assert(!gains.empty());
    const size_t layer = gains.top().second;
    gains.pop();
    ++schedule.samples[layer];
    offer(layer);
  }
  return schedule;
}

}  // namespace allot::policy
