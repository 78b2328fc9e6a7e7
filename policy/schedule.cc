#include "policy/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"

namespace allot::policy {
namespace {

int32_t parse_entry(std::string_view entry, size_t layer) {
  if (entry == kExactLayerText) return kExactLayer;
  int32_t value = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), value);
  if (error != std::errc{} || end != entry.data() + entry.size() || value < 0) {
    throw InvalidArgument(
        "schedule: the entry of layer " + std::to_string(layer) + " is '" + std::string(entry) +
        "'; expected an integer from 0 to 2147483647 or exact; write one entry per layer, as in 33,8,7,3");
  }
  return value;
}

// The shares divided by the largest, so that no sum of them overflows.
std::vector<double> scaled_shares(std::span<const double> shares) {
  double largest = 0;
  for (size_t layer = 0; layer < shares.size(); ++layer) {
    if (!std::isfinite(shares[layer]) || shares[layer] < 0) {
      throw InvalidArgument("apportion: the share of layer " + std::to_string(layer) + " is " +
                            std::to_string(shares[layer]) + "; shares must be finite and at least 0");
    }
    largest = std::max(largest, shares[layer]);
  }
  if (largest == 0) {
    throw InvalidArgument("apportion: all " + std::to_string(shares.size()) +
                          " shares are 0; at least one layer needs a share above 0");
  }
  std::vector<double> scaled(shares.begin(), shares.end());
  for (double& share : scaled) share /= largest;
  return scaled;
}

// One more sample for the `count` layers with the largest remainders, which are in [0, 1). Among equal ones
// the earlier layer comes first, so that it is well defined which layers get one more. Sorted into drawers
// first: a selection by comparisons takes twice as long, most of it in mispredicted branches, and a restart
// asks again for every schedule of its history.
void round_up_largest(std::span<const double> remainders, int64_t count, Schedule* schedule) {
  constexpr int kDrawers = 32;
  const auto drawer_of = [](double remainder) { return static_cast<int>(remainder * kDrawers); };
  std::array<int64_t, kDrawers> filled{};
  for (const double remainder : remainders) ++filled[static_cast<size_t>(drawer_of(remainder))];
  // Above this drawer all layers get one more, below it none.
  int split = kDrawers - 1;
  while (split > 0 && filled[static_cast<size_t>(split)] <= count)
    count -= filled[static_cast<size_t>(split--)];
  std::vector<std::pair<double, size_t>> undecided;  // of -remainder, layer
  undecided.reserve(remainders.size());
  for (size_t layer = 0; layer < remainders.size(); ++layer) {
    const int drawer = drawer_of(remainders[layer]);
    schedule->samples[layer] += drawer > split;
    if (drawer == split) undecided.emplace_back(-remainders[layer], layer);
  }
  std::ranges::sort(undecided);
  for (size_t first = 0; first < undecided.size() && std::cmp_less(first, count); ++first)
    ++schedule->samples[undecided[first].second];
}

}  // namespace

int64_t Schedule::total() const {
  return total_samples(samples);
}

std::string Schedule::to_string() const {
  return layers_text(samples);
}

const Schedule& schedule_of_prompt(std::span<const ScheduleBand> bands, const Schedule& beyond,
                                   int64_t tokens) {
  const auto band =
      std::ranges::find_if(bands, [tokens](const ScheduleBand& one) { return tokens <= one.most_tokens; });
  return band == bands.end() ? beyond : band->schedule;
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule;
  for (const std::string_view entry : entries_of(text))
    schedule.samples.push_back(parse_entry(trim(entry), schedule.samples.size()));
  return schedule;
}

Schedule uniform_schedule(int layers, int32_t per_layer) {
  if (layers < 1 || per_layer < 0) {
    throw InvalidArgument("uniform schedule: " + std::to_string(layers) + " layers of " +
                          std::to_string(per_layer) +
                          " samples; expected at least 1 layer and at least 0 samples");
  }
  return {std::vector<int32_t>(static_cast<size_t>(layers), per_layer)};
}

void check_schedule(const Schedule& schedule, int layers, int32_t floor, int64_t total) {
  if (std::ssize(schedule.samples) != layers) {
    throw InvalidArgument("schedule " + schedule.to_string() + " has " +
                          std::to_string(schedule.samples.size()) + " entries, but the model has " +
                          std::to_string(layers) + " layers; give one entry per layer");
  }
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer) {
    if (schedule.samples[layer] != kExactLayer && schedule.samples[layer] < floor) {
      throw InvalidArgument("schedule " + schedule.to_string() + ": layer " + std::to_string(layer) +
                            " gets " + std::to_string(schedule.samples[layer]) +
                            " samples, but the floor is " + std::to_string(floor) +
                            "; raise the entry or lower the floor");
    }
  }
  if (total >= 0 && schedule.total() != total) {
    throw InvalidArgument("schedule " + schedule.to_string() + " sums to " +
                          std::to_string(schedule.total()) + ", but the total budget is " +
                          std::to_string(total) + "; change its entries or the total");
  }
}

Schedule apportion(std::span<const double> shares, int64_t total, int32_t floor) {
  const auto layers = std::ssize(shares);
  if (floor < 0 || total < layers * floor || total > std::numeric_limits<int32_t>::max()) {
    throw InvalidArgument("apportion: a total of " + std::to_string(total) + " over " +
                          std::to_string(layers) + " layers with floor " + std::to_string(floor) +
                          "; the floor must be at least 0 and the total from " +
                          std::to_string(layers * std::max(floor, 0)) + " to 2147483647");
  }
  const std::vector<double> scaled = scaled_shares(shares);
  const double sum = std::accumulate(scaled.begin(), scaled.end(), 0.0);
  const int64_t spread = total - layers * floor;

  Schedule schedule = uniform_schedule(static_cast<int>(layers), floor);
  std::vector<double> remainders(scaled.size());
  int64_t left = spread;
  for (size_t layer = 0; layer < scaled.size(); ++layer) {
    const double quota = static_cast<double>(spread) * (scaled[layer] / sum);
    const auto whole = static_cast<int64_t>(quota);  // the floor: it is not negative
    remainders[layer] = quota - static_cast<double>(whole);
    schedule.samples[layer] += static_cast<int32_t>(whole);
    left -= whole;
  }
  round_up_largest(remainders, std::clamp<int64_t>(left, 0, layers), &schedule);
  return schedule;
}

Schedule even_schedule(int layers, int64_t total, int32_t floor) {
  if (layers < 1) {
    throw InvalidArgument("even schedule: a total of " + std::to_string(total) + " over " +
                          std::to_string(layers) + " layers; expected at least 1 layer");
  }
  return apportion(std::vector<double>(static_cast<size_t>(layers), 1.0), total, floor);
}

Schedule even_schedule(const Schedule& schedule) {
  return even_schedule(schedule, schedule.total());
}

Schedule even_schedule(const Schedule& schedule, int64_t total) {
  const auto sampled = static_cast<int>(sampled_layers(schedule.samples));
  const Schedule even = even_schedule(sampled, total, /*floor=*/0);
  Schedule result = schedule;
  auto next = even.samples.begin();
  for (int32_t& samples : result.samples)
    if (samples != kExactLayer) samples = *next++;
  return result;
}

}  // namespace allot::policy
