// A schedule: how many attention samples each layer gets, or that its attention is exact. Parsing, printing,
// checking and apportionment live here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episode/samples.h"

namespace allot::policy {

struct Schedule {
  std::vector<int32_t> samples;  // [layers], each >= 0 or kExactLayer

  int64_t total() const;  // of the layers that sample
  // "33,8,7,3,4,2,3,4", "exact,8,7,3".
  std::string to_string() const;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

// The schedule of prompts with at most `most_tokens` tokens, and with more than those of the band before it.
struct ScheduleBand {
  int64_t most_tokens = 0;
  Schedule schedule;
  friend bool operator==(const ScheduleBand&, const ScheduleBand&) = default;
};
// That of a prompt of `tokens`: of the first of `bands`, which rise, that holds it, else `beyond`.
const Schedule& schedule_of_prompt(std::span<const ScheduleBand> bands, const Schedule& beyond,
                                   int64_t tokens);

// Parses "a,b,c,…", where an entry is a number of samples or "exact". Throws InvalidArgument naming the
// offending entry and its place.
Schedule parse_schedule(std::string_view text);

// `per_layer` samples in each of `layers` layers.
Schedule uniform_schedule(int layers, int32_t per_layer);

// Throws InvalidArgument naming the values when the schedule does not have `layers` entries, has an entry
// below `floor` that is not exact, or (when total >= 0) has another sum than `total`.
void check_schedule(const Schedule& schedule, int layers, int32_t floor, int64_t total = -1);

// Integers >= floor with sum `total`, as close as possible to floor + (total - layers * floor) * share /
// sum(shares), by largest remainder; ties go to the lower layer. `shares` are finite, >= 0, not all zero.
// Throws InvalidArgument when total < layers * floor.
Schedule apportion(std::span<const double> shares, int64_t total, int32_t floor);

// The schedule "uniform" of evidence and reports: `total` spread evenly over `layers` layers, so that no two
// entries differ by more than 1 and the larger ones come first. The floor changes none of them, it only says
// what is refused: throws InvalidArgument when layers < 1, or as apportion() does.
Schedule even_schedule(int layers, int64_t total, int32_t floor);
// The same of another schedule: its exact layers stay exact, the others get its total, or `total`, as evenly
// as it goes. Throws InvalidArgument when every layer is exact.
Schedule even_schedule(const Schedule& schedule);
Schedule even_schedule(const Schedule& schedule, int64_t total);

}  // namespace allot::policy
