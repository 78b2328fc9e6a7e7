// Least and most samples per layer that a run keeps beyond its floor: floors, caps and pins of layers, and
// layers whose attention is exact.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

// What the user asked for; without ranges, nothing but the floor.
struct Bounds {
  struct Range {
    int32_t first = 0;  // layers first to last, both among them
    int32_t last = 0;
    std::optional<int32_t> least = {};  // samples; without one, the floor
    std::optional<int32_t> most = {};   // without one, what the total leaves
    bool exact = false;                 // no samples at all: exact attention
    friend bool operator==(const Range&, const Range&) = default;
  };
  std::vector<Range> ranges;  // in the order given

  bool empty() const { return ranges.empty(); }
  // Of `layers` layers, ascending.
  std::vector<int32_t> exact_layers(int layers) const;
  // As parse_bounds() reads it: "0:exact,3:4,5-9:2-12,10:2-,11:-8"; empty without ranges.
  std::string to_string() const;
  friend bool operator==(const Bounds&, const Bounds&) = default;
};

// Parses "LAYERS:RANGE,…": LAYERS is a layer ("3") or the first and last of several ("5-9"), RANGE is the
// samples that a layer is pinned to ("4") or the least and most ("2-12"), of which one may be left out ("2-",
// "-8"), or "exact". Empty text has no bounds. Throws InvalidArgument naming the offending entry.
Bounds parse_bounds(std::string_view text);

// The bounds of each layer.
struct Limits {
  std::vector<int32_t>
      least;  // [layers], kExactLayer in exact ones; both are empty where only the floor binds
  std::vector<int32_t> most;  // [layers], the same

  bool empty() const { return least.empty(); }
  bool keeps(const Schedule& schedule) const;
};

// Empty for bounds without ranges. Throws InvalidArgument naming the values: for a layer that the model does
// not have or that is bounded twice, a least above the most, an end below `floor`, and where every layer is
// exact or no schedule of `total` keeps all bounds.
Limits limits_of(const Bounds& bounds, int layers, int64_t total, int32_t floor);

// Of the schedules that keep bounds.
struct Totals {
  int64_t least = 0;
  std::optional<int64_t> most = {};  // nothing where some layer that samples has no most
};
// Throws InvalidArgument as limits_of() does but for the total.
Totals totals_within(const Bounds& bounds, int layers, int32_t floor);

// Integers within the limits with sum `total`, as close as possible to what lies nearest to proportional:
// floor + x * share, moved into the limits, with the x at which these sum to `total`; by largest remainder,
// ties to the lower layer. A layer without a share counts as having next to none. Without limits, and where
// the apportionment by the floor alone keeps them, it is that one, bit for bit. Throws as apportion() does.
Schedule apportion(std::span<const double> shares, int64_t total, int32_t floor, const Limits& limits);

// The schedule itself where it keeps the limits, else the apportionment of its samples above the floor.
Schedule kept(const Schedule& schedule, int32_t floor, const Limits& limits);

// Throws InvalidArgument naming schedule, layer and values where it does not keep the limits; without limits
// no layer may be exact.
void check_limits(const Schedule& schedule, const Limits& limits);

}  // namespace allot::policy
