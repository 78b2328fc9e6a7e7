// A replay of a history by hand: what the policy must be, worked out without the core.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "aggregator/history.h"
#include "aggregator/run_spec.h"
#include "policy/policy.h"

namespace allot::aggregator {

// Feeds the recorded asks, tells and set-asides to a fresh policy and expects every proposal and every
// recorded version of the shares to be equal bit for bit. Returns the policy at the end.
inline std::unique_ptr<policy::Policy> replay_by_hand(const History& history, const wire::RunSpec& spec) {
  auto policy = policy::make_policy(policy_config(spec));
  std::set<EpisodeId> learning;
  history.replay([&](const Record& record) {
    if (const auto* asked = std::get_if<EpisodeAsked>(&record);
        asked && asked->episode.stage == Stage::kLearn) {
      const policy::Proposal proposal = policy->ask(1).at(0);
      EXPECT_EQ(proposal.number, asked->episode.episode.value);
      EXPECT_EQ(proposal.schedule.samples, asked->episode.samples);
      EXPECT_EQ(proposal.log_prob, asked->episode.log_prob);
      learning.insert(asked->episode.episode);
    } else if (const auto* told = std::get_if<EpisodeTold>(&record);
               told && learning.contains(told->episode)) {
      EXPECT_EQ(policy->version(), told->told_version);
      policy->tell({told->episode.value, reward(told->results)});
    } else if (const auto* set_aside = std::get_if<EpisodeSetAside>(&record);
               set_aside && learning.contains(set_aside->episode)) {
      policy->set_aside(set_aside->episode.value);
    } else if (const auto* reached = std::get_if<VersionReached>(&record)) {
      EXPECT_EQ(policy->version(), reached->version);
      EXPECT_EQ(policy->shares(), reached->shares) << "version " << reached->version;
    }
  });
  return policy;
}

}  // namespace allot::aggregator
