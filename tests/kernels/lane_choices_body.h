// The body of the functions of lane_choices.h. To be included between the marks of an instruction set
// (kernels/cpu/target.h), each in a file of its own.
#pragma once

#include "kernels/cpu/lane_select.h"
#include "tests/kernels/lane_choices.h"

namespace allot::kernels::testing {

template <class V>
cpu::LanePicks<V> choose(const LaneCase& one, cpu::Workspace& work) {
  using F = typename V::F;
  const cpu::LaneSizes rows{one.sizes, one.keys, one.lanes};
  if (one.rule == LaneRule::kLevel)
    return cpu::level_lanes<V>(rows, static_cast<float>(one.samples), one.u, work);
  if (one.rule == LaneRule::kThreshold) {
    int32_t samples[cpu::kLanes];
    for (int32_t& lane : samples) lane = one.samples;
    return cpu::threshold_lanes<V>(
        rows, samples, one.u, [](F, F rate) { return rate; }, work);
  }
  F total = V::zero();
  for (int32_t key = 0; key < one.keys; ++key) total = total + V::load(one.sizes + key * cpu::kLanes);
  return cpu::systematic_lanes<V>(rows, one.samples, total, one.u, work);
}

template <class V>
void list_choices(const LaneCase& one, LaneLists& lists) {
  cpu::Workspace work;
  const cpu::LanePicks<V> picks = choose<V>(one, work);
  for (int32_t lane = 0; lane < cpu::kLanes; ++lane) {
    int32_t* keys = lists.keys + lane * one.keys;
    float* weights = lists.weights + lane * one.keys;
    int32_t& count = lists.counts[lane] = 0;
    const auto list = [&](int32_t first, int32_t end) {
      if (first == end) return;
      const int32_t before = count;
      count += picks.visit(lane, first, end, [=](int32_t i, int32_t key, float weight) {
        keys[before + i] = key;
        weights[before + i] = weight;
      });
    };
    list(0, one.cut);
    list(one.cut, one.keys);
  }
}

}  // namespace allot::kernels::testing
