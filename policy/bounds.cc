#include "policy/bounds.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace allot::policy {
namespace {

[[noreturn]] void refuse_entry(std::string_view entry) {
  throw InvalidArgument(
      "bounds: the entry '" + std::string(entry) +
      "' is not LAYERS:RANGE; write layers as 3 or 5-9, and their samples as 4 (a pin), 2-12, 2-, -8 or exact");
}

int32_t parse_number(std::string_view text, std::string_view entry) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) refuse_entry(entry);
  return value;
}

Bounds::Range parse_range(std::string_view entry) {
  const size_t colon = entry.find(':');
  if (colon == std::string_view::npos) refuse_entry(entry);
  const std::string_view layers = entry.substr(0, colon), samples = entry.substr(colon + 1);
  Bounds::Range range;
  const size_t to = layers.find('-');
  range.first = range.last = parse_number(layers.substr(0, to), entry);
  if (to != std::string_view::npos) range.last = parse_number(layers.substr(to + 1), entry);
  if (samples == kExactLayerText) {
    range.exact = true;
    return range;
  }
  const size_t dash = samples.find('-');
  if (dash == std::string_view::npos) {
    range.least = range.most = parse_number(samples, entry);
    return range;
  }
  if (samples == "-") refuse_entry(entry);
  if (dash > 0) range.least = parse_number(samples.substr(0, dash), entry);
  if (dash + 1 < samples.size()) range.most = parse_number(samples.substr(dash + 1), entry);
  return range;
}

std::string range_text(const Bounds::Range& range) {
  std::string text = std::to_string(range.first);
  if (range.last != range.first) text += "-" + std::to_string(range.last);
  text += ":";
  if (range.exact) return text + std::string(kExactLayerText);
  if (range.least && range.least == range.most) return text + std::to_string(*range.least);
  if (range.least) text += std::to_string(*range.least);
  text += "-";
  if (range.most) text += std::to_string(*range.most);
  return text;
}

void check_range(const Bounds::Range& range, int layers, int32_t floor) {
  const std::string entry = "bounds: " + range_text(range) + " ";
  if (range.last < range.first || range.last >= layers) {
    throw InvalidArgument(entry + "is for layers " + std::to_string(range.first) + " to " +
                          std::to_string(range.last) + "; expected layers from 0 to " +
                          std::to_string(layers - 1) + ", the lower one first");
  }
  if (range.exact) return;
  const int32_t least = range.least.value_or(floor);
  if (least < floor || range.most.value_or(floor) < floor) {
    throw InvalidArgument(entry + "allows fewer samples than the floor of " + std::to_string(floor) +
                          "; raise it or lower the floor");
  }
  if (range.most && least > *range.most) {
    throw InvalidArgument(entry + "has a least of " + std::to_string(least) + " above its most of " +
                          std::to_string(*range.most) + "; write the lower one first");
  }
}

// The bounds of each layer, of which none may have more than `whole`; checked but for the total.
Limits limits_up_to(const Bounds& bounds, int layers, int32_t whole, int32_t floor) {
  const auto count = static_cast<size_t>(layers);
  Limits limits{.least = std::vector<int32_t>(count, floor), .most = std::vector<int32_t>(count, whole)};
  std::vector<bool> bounded(count);
  for (const Bounds::Range& range : bounds.ranges) {
    check_range(range, layers, floor);
    for (auto layer = static_cast<size_t>(range.first); layer <= static_cast<size_t>(range.last); ++layer) {
      if (bounded[layer]) {
        throw InvalidArgument("bounds: layer " + std::to_string(layer) + " is bounded twice in " +
                              bounds.to_string() + "; give each layer at most one range");
      }
      bounded[layer] = true;
      limits.least[layer] = range.exact ? kExactLayer : range.least.value_or(floor);
      limits.most[layer] = range.exact ? kExactLayer : std::min(range.most.value_or(whole), whole);
    }
  }
  if (sampled_layers(limits.least) == 0) {
    throw InvalidArgument("bounds: " + bounds.to_string() + " makes all " + std::to_string(layers) +
                          " layers exact; leave at least one to sample");
  }
  return limits;
}

}  // namespace

std::string Bounds::to_string() const {
  std::string text;
  for (const Range& range : ranges) {
    if (!text.empty()) text += ',';
    text += range_text(range);
  }
  return text;
}

std::vector<int32_t> Bounds::exact_layers(int layers) const {
  std::vector<int32_t> exact;
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (std::ranges::any_of(ranges, [&](const Range& range) {
          return range.exact && range.first <= layer && layer <= range.last;
        }))
      exact.push_back(layer);
  }
  return exact;
}

Bounds parse_bounds(std::string_view text) {
  Bounds bounds;
  if (text.empty()) return bounds;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    bounds.ranges.push_back(parse_range(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return bounds;
}

bool Limits::keeps(const Schedule& schedule) const {
  for (size_t layer = 0; layer < least.size(); ++layer) {
    const int32_t samples = schedule.samples[layer];
    if (samples < least[layer] || samples > most[layer]) return false;
  }
  return true;
}

Limits limits_of(const Bounds& bounds, int layers, int64_t total, int32_t floor) {
  if (bounds.empty()) return {};
  const auto whole = static_cast<int32_t>(std::min<int64_t>(total, std::numeric_limits<int32_t>::max()));
  const Limits limits = limits_up_to(bounds, layers, whole, floor);
  const int64_t sampled = sampled_layers(limits.least);
  const int64_t lowest = total_samples(limits.least), highest = total_samples(limits.most);
  if (lowest > total || highest < total) {
    throw InvalidArgument("bounds: " + bounds.to_string() + " with floor " + std::to_string(floor) +
                          " leave from " + std::to_string(lowest) + " to " + std::to_string(highest) +
                          " samples in the " + std::to_string(sampled) +
                          " layers that sample, but the total is " + std::to_string(total) +
                          "; widen the bounds or change the total");
  }
  return limits;
}

Totals totals_within(const Bounds& bounds, int layers, int32_t floor) {
  constexpr int32_t kAny = std::numeric_limits<int32_t>::max();
  const Limits limits = limits_up_to(bounds, layers, kAny, floor);
  Totals totals{.least = total_samples(limits.least)};
  if (std::ranges::find(limits.most, kAny) == limits.most.end()) totals.most = total_samples(limits.most);
  return totals;
}

Schedule apportion(std::span<const double> shares, int64_t total, int32_t floor, const Limits& limits) {
  const Schedule free = apportion(shares, total, floor);
  if (limits.keeps(free)) return free;
  // So little that rounding does not show it, but where nothing else may grow such layers get all.
  constexpr double kNextToNone = 1e-9;
  const size_t layers = shares.size();
  const double largest = *std::ranges::max_element(shares);
  const auto amount = [&](size_t layer, double scale) {
    const double wanted = floor + scale * std::max(shares[layer] / largest, kNextToNone);
    return std::clamp<double>(wanted, limits.least[layer], limits.most[layer]);
  };
  // Largest sum of at most `total`: it grows with the scale, and at the upper end every layer is at its most.
  double low = 0, high = static_cast<double>(total) / kNextToNone;
  for (int halving = 0; halving < 200; ++halving) {
    const double middle = 0.5 * (low + high);
    double sum = 0;
    for (size_t layer = 0; layer < layers; ++layer) sum += amount(layer, middle);
    (sum <= static_cast<double>(total) ? low : high) = middle;
  }

  Schedule schedule;
  std::vector<double> remainders;
  std::vector<size_t> order(layers);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t layer = 0; layer < layers; ++layer) {
    const double exact = amount(layer, low);
    schedule.samples.push_back(static_cast<int32_t>(exact));
    remainders.push_back(exact - schedule.samples.back());
  }
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t layer) { return remainders[layer]; });
  for (int64_t left = total - schedule.total(); left > 0;) {
    for (const size_t layer : order) {
      if (left == 0 || schedule.samples[layer] >= limits.most[layer]) continue;
      ++schedule.samples[layer];
      --left;
    }
  }
  return schedule;
}

Schedule kept(const Schedule& schedule, int32_t floor, const Limits& limits) {
  if (limits.keeps(schedule)) return schedule;
  std::vector<double> above;
  for (const int32_t samples : schedule.samples) above.push_back(samples - floor);
  return apportion(above, schedule.total(), floor, limits);
}

void check_limits(const Schedule& schedule, const Limits& limits) {
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer) {
    const int32_t samples = schedule.samples[layer];
    const bool bounded = !limits.empty();
    const bool exact = bounded && limits.least[layer] == kExactLayer;
    if ((samples == kExactLayer) != exact) {
      throw InvalidArgument("schedule " + schedule.to_string() + ": layer " + std::to_string(layer) + " is " +
                            layer_text(samples) +
                            (exact ? ", but its bound is exact" : ", but no bound makes it exact") +
                            "; change the entry, or the bounds as in " + std::to_string(layer) + ":exact");
    }
    if (!bounded || (samples >= limits.least[layer] && samples <= limits.most[layer])) continue;
    throw InvalidArgument("schedule " + schedule.to_string() + ": layer " + std::to_string(layer) + " gets " +
                          std::to_string(samples) + " samples, but its bounds are " +
                          std::to_string(limits.least[layer]) + " to " + std::to_string(limits.most[layer]) +
                          "; change the entry or the bounds");
  }
}

}  // namespace allot::policy
