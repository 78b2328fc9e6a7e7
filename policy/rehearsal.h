// A learner run against a model of the accuracy of schedules that costs microseconds (policy/surface.h,
// policy/simulation.h), as a run would: proposals in flight, unordered and lost outcomes, questions that all
// proposals of a group share.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policy/policy.h"
#include "policy/schedule.h"

namespace allot::policy {

struct RehearsalOptions {
  // Lasts until as many questions were asked as so many episodes of questions_per_episode have, or one
  // episode beyond: learners that ask for different numbers are compared at equal cost.
  int episodes = 0;
  int questions_per_episode = 16;  // of a proposal that says nothing of them
  int in_flight = 1;               // proposals in flight at once; they finish in random order
  double loss = 0;                 // probability that an episode is given up instead of told
  uint64_t seed = 0;
  std::vector<int> checkpoints = {};  // counted as `episodes` is, ascending, at most that
};

// What is rehearsed on.
struct Ground {
  // Of a right answer to the question of that number; not needed where everything measures divergences.
  std::function<double(const Schedule&, uint32_t question)> chance;
  // Expected over all questions; what is rehearsed for, so any other number of a schedule's merit may stand
  // here.
  std::function<double(const Schedule&)> accuracy;
  // Of a proposal that measures divergences, on so many questions of its group, above 0; needed where a
  // policy asks for them.
  std::function<double(const Schedule&, int64_t group, int questions)> divergence = {};
  // What a proposal measures that names no kind.
  RewardKind kind = RewardKind::kAnswers;
};

// Runs `policy`, telling it the result of each question; the expected accuracy of recommend() after each
// checkpoint. A function of the policy, the ground and the options alone. [checkpoints]
std::vector<double> rehearse(Policy& policy, const Ground& ground, const RehearsalOptions& options);

// The same on anything that has chance() and accuracy(): a Surface, a Landscape.
template <class Model>
std::vector<double> rehearse(Policy& policy, const Model& model, const RehearsalOptions& options) {
  return rehearse(
      policy,
      Ground{[&](const Schedule& schedule, uint32_t question) { return model.chance(schedule, question); },
             [&](const Schedule& schedule) { return model.accuracy(schedule); }},
      options);
}

}  // namespace allot::policy
