// What a run's spec must satisfy, and what follows from it.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "policy/policy.h"
#include "policy/schedule.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

// Throws InvalidArgument listing every field that is out of range, with its value and what is expected.
void validate(const wire::RunSpec& spec);

// Learning episodes that measure divergences where their proposals name no kind: all, the first, or none.
int64_t divergence_episodes(const wire::RunSpec& spec);
// Questions of an episode of each task: the spec's own, then the others of its evaluation.
std::vector<uint32_t> questions_per_episode(const wire::RunSpec& spec);
// Questions of an episode that measures divergences.
uint32_t questions_of_divergence(const wire::RunSpec& spec);

// The configuration of the policy that a run learns with. The run's seed is the policy's seed.
policy::PolicyConfig policy_config(const wire::RunSpec& spec);
// The policy of that configuration; of a run that evaluates one that proposes nothing and stays as it is.
std::unique_ptr<policy::Policy> make_learner(const wire::RunSpec& spec);
// Throws Mismatch for a run that evaluates, which has no learner to read or go on with. `place` is its
// directory.
void require_learner(const wire::RunSpec& spec, const std::filesystem::path& place);
// The inverse, except for the layers and the seed, which a spec takes from its model and its run.
wire::PolicySpec policy_spec(const policy::PolicyConfig& config);

// The budget split evenly: total / layers in each layer, the rest by largest remainder. Without layers where
// the run evaluates.
policy::Schedule even_schedule(const wire::RunSpec& spec);

// Sets the fields of a status that identify the run.
void describe_run(const wire::RunSpec& spec, wire::Status* status);

// Sets the fields of a status that hold the learner's description of itself.
void describe_policy(const policy::Description& described, wire::Status* status);

// Episodes of the verification: uniform, learned and dense on each batch of held-out questions;
// 0 = no verification.
inline constexpr int64_t kVerifiedSchedules = 3;
int64_t verification_episodes(const wire::RunSpec& spec);

// Training questions of the preflight: those the spec asks for, or all of a smaller file.
int64_t preflight_questions(const wire::RunSpec& spec);
// Episodes of the preflight: dense and uniform on each batch of its questions; 0 = no preflight.
inline constexpr int64_t kPreflightSchedules = 2;
int64_t preflight_episodes(const wire::RunSpec& spec);

}  // namespace allot::aggregator
