// A model of how accuracy depends on a schedule, cheap enough to run a learner thousands of times: for tests,
// for the tuner's benchmark and for choosing defaults. It does not model a real network; docs/policy.md says
// how it was calibrated.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

// The variance of a sampled layer falls as 1 / S_l (S2ANTA paper, Appendix N), so the error of a schedule is
//   noise = sum_l sensitivity_l / S_l     (a layer with no samples counts as one with a quarter of a sample),
// and question q is answered with chance dense * sigmoid(steepness * (midpoint - log(noise)) -
// question_spread * z_q), z_q standard normal: hard questions are hard under every schedule, which is what
// makes common questions pay.
struct Landscape {
  std::vector<double> sensitivities;  // [layers], each > 0
  double dense = 1;                   // accuracy without sampling
  double steepness = 1;
  double midpoint = 0;
  double question_spread = 1;

  double noise(const Schedule& schedule) const;
  // Probability of a right answer to `question`, whose difficulty is a function of its number alone.
  double chance(const Schedule& schedule, uint32_t question) const;
  // Expected accuracy over all questions, by quadrature over z.
  double accuracy(const Schedule& schedule) const;
  // The schedule of least noise, exactly: the noise is separable and convex, so giving each sample to the
  // layer that gains most is optimal.
  Schedule best(int64_t total, int32_t floor) const;
};

// What a landscape must reproduce.
struct Calibration {
  std::vector<double> sensitivities;
  int64_t total = 0;
  int32_t floor = 1;
  double dense = 1;
  double uniform_accuracy = 0;
  double best_accuracy = 0;
  double question_spread = 1;
};

// Solves for steepness and midpoint so that the uniform and the best schedule have the given accuracies.
// Throws InvalidArgument unless 0 < uniform < best < dense.
Landscape calibrate(const Calibration& calibration);

// DeepSeek 7B on GSM8K at N = 224 over 28 layers: first and middle layers matter most (S2ANTA paper, Figure
// 8), uniform 52.46 % (Table 19), dense 88.75 % (Table 13). The best schedule is not known; it is set to
// 77.5 %, with which Algorithm 1 reaches the published 66.06 % after the published 5,010 episodes.
Landscape paper_landscape();
// The same 28 layers on a task that uniform nearly fails: uniform 17 %, best 75 %.
Landscape steep_landscape();
// The embedded 8-layer model at N = 64: nearly everything depends on layer 0; uniform 14 %, best 95 %.
Landscape tiny_landscape();

// The three by their names: published, steep, tiny. Each is at kLandscapeSamples of a layer.
inline constexpr int32_t kLandscapeSamples = 8;
struct NamedLandscape {
  std::string_view name;
  Landscape (*make)() = nullptr;
};
std::span<const NamedLandscape> landscapes();

}  // namespace allot::policy
