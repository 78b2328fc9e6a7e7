// A replay of a history by hand: what the policy must be, worked out without the core.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/history.h"
#include "aggregator/outlook.h"
#include "aggregator/run_spec.h"
#include "policy/policy.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

struct PolicyReplay {
  std::unique_ptr<policy::Policy> policy;  // at the end
  std::vector<std::string> faults;         // where the history says otherwise
};

// Feeds the recorded asks, tells and set-asides to a fresh policy. Every proposal and every recorded version
// of the shares must be equal bit for bit; what is not is a fault.
inline PolicyReplay replay_policy(const History& history, const wire::RunSpec& spec) {
  PolicyReplay replay{policy::make_policy(policy_config(spec)), {}};
  policy::Policy& policy = *replay.policy;
  const auto expect = [&](bool holds, const char* what, int64_t number) {
    if (!holds) replay.faults.push_back(fmt::format("{} {} differs from the replay's", what, number));
  };
  std::map<EpisodeId, int64_t> learning;  // the number of the proposal
  history.replay([&](const Record& record) {
    if (const auto* asked = std::get_if<EpisodeAsked>(&record);
        asked && asked->episode.stage == Stage::kLearn) {
      const policy::Proposal proposal = policy.ask(1).at(0);
      const int64_t number = std::ssize(learning);
      expect(proposal.number == number, "the number of episode", number);
      expect(proposal.schedule.samples == asked->episode.samples, "the schedule of episode", number);
      expect(proposal.log_prob == asked->episode.log_prob, "the log_prob of episode", number);
      learning[asked->episode.id] = number;
    } else if (const auto* told = std::get_if<EpisodeTold>(&record);
               told && learning.contains(told->episode)) {
      expect(policy.version() == told->told_version, "the told_version of episode", told->episode.value);
      policy.tell({learning.at(told->episode), mean_score(told->results)});
    } else if (const auto* given_up = std::get_if<EpisodeGivenUp>(&record);
               given_up && learning.contains(given_up->episode)) {
      policy.give_up(learning.at(given_up->episode));
    } else if (const auto* controlled = std::get_if<RunControlled>(&record);
               controlled && controlled->action == ControlAction::kBounds) {
      policy.bound(policy::parse_bounds(controlled->bounds));
    } else if (const auto* reached = std::get_if<VersionReached>(&record)) {
      expect(policy.version() == reached->version, "the number of version", reached->version);
      expect(describe_with_outlook(policy) == reached->described, "the description of version",
             reached->version);
      expect(!reached->digest || policy.digest() == *reached->digest, "the digest of version",
             reached->version);
    }
  });
  return replay;
}

// The same for tests that stand or fall with it: every fault is a failure.
inline std::unique_ptr<policy::Policy> replay_by_hand(const History& history, const wire::RunSpec& spec) {
  PolicyReplay replay = replay_policy(history, spec);
  for (const std::string& fault : replay.faults) ADD_FAILURE() << fault;
  return std::move(replay.policy);
}

}  // namespace allot::aggregator
