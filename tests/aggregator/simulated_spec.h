// The run that tests with real processes serve: 16 questions an episode, as the paper's, on the landscape of
// the embedded model.
#pragma once

#include "tests/aggregator/example_spec.h"

namespace allot::aggregator {

inline wire::RunSpec simulated_spec(int64_t episodes) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(episodes);
  spec.set_questions_per_episode(16);
  spec.mutable_task()->mutable_train()->set_questions(7473);
  spec.mutable_task()->mutable_heldout()->set_questions(1319);
  spec.mutable_task()->set_heldout_questions(160);
  (*spec.mutable_policy()->mutable_parameters())["pairs_per_update"] = 5;
  spec.set_lease_ms(5'000);
  spec.set_max_attempts(20);
  return spec;
}

}  // namespace allot::aggregator
