#include "policy/policy.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "policy/learner.h"
#include "tests/names.h"
#include "tests/repeats.h"

namespace allot::policy {
namespace {

using ::testing::AllOfArray;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Field;
using ::testing::ThrowsMessage;

// Behind the name of a learner that mixes kinds: in a run that measures divergences first.
constexpr std::string_view kMixed = " mixed";

std::vector<std::string> policies_and_mixed_runs() {
  std::vector<std::string> names = policy_names();
  for (const Learner* learner : learners()) {
    if (learner->mixes_kinds) names.push_back(std::string(learner->name) + std::string(kMixed));
  }
  return names;
}

// What every learner promises.
class EveryPolicy : public ::testing::TestWithParam<std::string> {
 protected:
  static bool mixed() { return GetParam().ends_with(kMixed); }
  static std::string learner_name() {
    return mixed() ? GetParam().substr(0, GetParam().size() - kMixed.size()) : GetParam();
  }
  static PolicyConfig config() {
    PolicyConfig config{.name = learner_name(), .layers = 6, .total = 40, .seed = 77, .max_policy_lag = 3};
    if (mixed()) config.divergence_episodes = 24;
    // Counts, such as how many outcomes make an update, are small, so that few outcomes reach updates.
    for (const Parameter& declared : find_learner(learner_name())->parameters) {
      if (declared.whole) config.parameters[std::string(declared.name)] = declared.least + 1;
    }
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Learners, EveryPolicy, ::testing::ValuesIn(policies_and_mixed_runs()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           std::erase(name, ' ');
                           return name;
                         });

// One call of a random event sequence.
struct Event {
  enum { kAsk, kTell, kGivenUp } kind;
  int64_t argument = 0;  // how many to ask for, or a proposal's number
  double reward = 0;
};

// Asks, tells in any order, repeats, unknown numbers, losses: fixed by the seed.
std::vector<Event> random_events(uint32_t seed, int count) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t bound) {
    return std::uniform_int_distribution<int64_t>(0, bound - 1)(random);
  };
  std::vector<Event> events;
  int64_t asked = 0;
  for (int k = 0; k < count; ++k) {
    const int64_t choice = below(10);
    if (asked == 0 || choice < 2) {
      const int64_t ask = 1 + below(5);
      asked += ask;
      events.push_back({Event::kAsk, ask});
    } else {
      const int64_t number = std::max<int64_t>(-1, asked + 1 - below(14));
      events.push_back(
          {choice == 9 ? Event::kGivenUp : Event::kTell, number, static_cast<double>(below(17)) / 16});
    }
  }
  return events;
}

// What the caller sees of an event.
std::string apply(Policy& policy, const Event& event) {
  std::string seen;
  switch (event.kind) {
    case Event::kAsk:
      for (const Proposal& proposal : policy.ask(static_cast<int>(event.argument))) {
        seen += nlohmann::json{proposal.number,           proposal.group,
                               proposal.schedule.samples, proposal.log_prob,
                               proposal.policy_version,   proposal.reward_kind == RewardKind::kDivergence}
                    .dump();
      }
      break;
    case Event::kTell:
      seen = std::to_string(static_cast<int>(policy.tell({event.argument, event.reward})));
      break;
    case Event::kGivenUp:
      policy.give_up(event.argument);
  }
  const Description described = policy.describe();
  for (const auto& scalar : described.scalars) seen += scalar.name + nlohmann::json(scalar.value).dump();
  return seen + nlohmann::json(described.per_layer).dump();
}

TEST_P(EveryPolicy, StartsAtTheUniformScheduleAndEqualShares) {
  PolicyConfig even = config();
  even.total = 48;
  const auto policy = make_policy(even);
  EXPECT_EQ(policy->recommend(), uniform_schedule(6, 8));
  EXPECT_EQ(policy->version(), 0);
  const Description described = policy->describe();
  if (described.layer_name != "share" || described.per_layer.empty()) return;
  EXPECT_THAT(described.per_layer, Each(DoubleNear(1.0 / 6, 1e-12)));
  ASSERT_NE(described.find("entropy"), nullptr);
  EXPECT_NEAR(*described.find("entropy"), std::log(6), 1e-12);
}

TEST_P(EveryPolicy, StartsAtTheScheduleOfItsConfigurationExactly) {
  PolicyConfig warm = config();
  for (const char* text : {"20,4,1,1,1,13", "1,1,1,35,1,1", "7,7,7,7,6,6"}) {
    warm.start = parse_schedule(text);
    const auto policy = make_policy(warm);
    EXPECT_EQ(policy->recommend(), warm.start);
    // What it asks lies around the start: with wide perturbations, mean samples are only roughly as there.
    double of_largest = 0;
    const auto largest = std::ranges::max_element(warm.start.samples) - warm.start.samples.begin();
    for (const Proposal& proposal : policy->ask(64)) {
      EXPECT_NO_THROW(check_schedule(proposal.schedule, 6, 1, 40));
      of_largest += proposal.schedule.samples[static_cast<size_t>(largest)] / 64.0;
    }
    EXPECT_GT(of_largest, 0.6 * warm.start.samples[static_cast<size_t>(largest)]) << text;
  }
}

// The number of events between restoring a learner and restoring it again: a state is long, and under
// sanitizers writing and reading it takes nearly all of the time.
constexpr int kEventsARestore = kUnderSanitizers ? 14 : 1;

TEST_P(EveryPolicy, WithAStartRestoresBitForBitAndOnlyUnderThatStart) {
  PolicyConfig warm = config();
  warm.start = parse_schedule("20,4,1,1,1,13");
  const auto original = make_policy(warm);
  auto restored = make_policy(warm);
  int number = 0;
  for (const Event& event : random_events(4, 120)) {
    const bool restores = number++ % kEventsARestore == 0;
    if (restores) restored = restore_policy(warm, restored->save());
    ASSERT_EQ(apply(*restored, event), apply(*original, event));
    if (restores) {
      ASSERT_EQ(restored->save(), original->save());
    }
  }
  EXPECT_GT(original->version(), 3);
  EXPECT_THAT([&] { restore_policy(config(), original->save()); },
              ThrowsMessage<CorruptFile>(Names("start", 20, 13, "null")));
  EXPECT_THAT([&] { restore_policy(warm, make_policy(config())->save()); },
              ThrowsMessage<CorruptFile>(Names("start", 20, 13, "null")));
}

TEST_P(EveryPolicy, ProposalsAreNumberedInOrderAndKeepTotalAndFloor) {
  const auto policy = make_policy(config());
  int64_t number = 0;
  for (const int count : {1, 4, 3, 1, 1, 30}) {
    for (const Proposal& proposal : policy->ask(count)) {
      EXPECT_EQ(proposal.number, number++);
      EXPECT_NO_THROW(check_schedule(proposal.schedule, 6, 1, 40));
    }
  }
  EXPECT_EQ(number, 40);
}

// A pin, a cap that the even schedule breaks, a floor that it breaks, and bounds without any choice.
constexpr const char* kBounds[] = {"2:3,0:-4,4-5:9-", "1-3:2-5", "0-4:6,5:-10"};

struct BoundedRun {
  const char* bounds;
  const char* start;
};
// Of the last one the start is worse than the even schedule, which the bounds do not allow.
constexpr BoundedRun kBoundedRuns[] = {
    {kBounds[0], ""}, {kBounds[1], ""}, {kBounds[2], ""}, {kBounds[1], "1,5,5,5,12,12"}};

TEST_P(EveryPolicy, EverythingAskedAndRecommendedKeepsTheBounds) {
  for (const BoundedRun& run : kBoundedRuns) {
    PolicyConfig bounded = config();
    bounded.bounds = parse_bounds(run.bounds);
    if (*run.start != '\0') bounded.start = parse_schedule(run.start);
    const int events = kUnderSanitizers ? 70 : 400;
    const Limits limits = limits_of(bounded.bounds, bounded.layers, bounded.total, bounded.floor);
    const auto policy = make_policy(bounded);
    std::mt19937_64 random(8);
    const auto check = [&](const Schedule& schedule) {
      ASSERT_NO_THROW(check_schedule(schedule, 6, 1, 40)) << run.bounds << " " << run.start;
      ASSERT_NO_THROW(check_limits(schedule, limits)) << run.bounds << " " << run.start;
    };
    check(policy->recommend());
    std::set<std::string> asked;
    for (int event = 0; event < events; ++event) {
      const Proposal proposal = policy->ask(1)[0];
      check(proposal.schedule);
      asked.insert(proposal.schedule.to_string());
      // Layer 0, which is capped, is what matters, and samples that it cannot have would help most.
      const double off = 8.0 / (1 + proposal.schedule.samples[0]) + 1.0 / (1 + proposal.schedule.samples[5]);
      const double noise = std::uniform_real_distribution<double>(0, 0.2)(random);
      const bool divergence = proposal.reward_kind == RewardKind::kDivergence;
      policy->tell({.number = proposal.number,
                    .reward = divergence ? off : std::clamp(0.9 - 0.1 * off + noise, 0.0, 1.0),
                    .kind = divergence ? RewardKind::kDivergence : RewardKind::kAnswers});
      check(policy->recommend());
    }
    EXPECT_GT(policy->version(), 3);
    if (run.bounds != kBounds[2]) {
      EXPECT_GT(asked.size(), 8u) << run.bounds;
    } else {
      EXPECT_EQ(asked.size(), 1u);
    }
  }
}

TEST_P(EveryPolicy, WithBoundsRestoresBitForBitAndOnlyUnderThoseBounds) {
  PolicyConfig bounded = config();
  bounded.bounds = parse_bounds(kBounds[0]);
  const auto original = make_policy(bounded);
  auto restored = make_policy(bounded);
  int number = 0;
  for (const Event& event : random_events(4, 120)) {
    if (number++ % kEventsARestore == 0) restored = restore_policy(bounded, restored->save());
    ASSERT_EQ(apply(*restored, event), apply(*original, event));
  }
  EXPECT_EQ(restored->save(), original->save());
  EXPECT_THAT([&] { restore_policy(config(), original->save()); },
              ThrowsMessage<CorruptFile>(Names("bounds", kBounds[0], "null")));
}

TEST_P(EveryPolicy, BesideExactLayersItLearnsAsWithoutThem) {
  PolicyConfig sampled = config();
  sampled.bounds = parse_bounds("1:5,4-5:-12");
  sampled.start = parse_schedule("9,5,2,2,12,10");
  PolicyConfig whole = sampled;
  whole.layers = 9;
  whole.bounds = parse_bounds("0:exact,2:5,4-5:exact,7-8:-12");
  whole.start = parse_schedule("exact,9,5,2,exact,exact,2,12,10");
  const auto widened = [](const Schedule& schedule) {
    std::vector<int32_t> samples = schedule.samples;
    for (const int layer : {0, 4, 5}) samples.insert(samples.begin() + layer, kExactLayer);
    return Schedule{samples};
  };
  const auto without = make_policy(sampled);
  auto beside = make_policy(whole);
  int number = 0;
  for (const Event& event : random_events(6, 100)) {
    if (number++ % kEventsARestore == 0) beside = restore_policy(whole, beside->save());
    if (event.kind == Event::kAsk) {
      for (int64_t left = event.argument; left > 0; --left) {
        const Proposal expected = without->ask(1)[0], proposal = beside->ask(1)[0];
        ASSERT_EQ(proposal.schedule, widened(expected.schedule));
        ASSERT_NO_THROW(check_schedule(proposal.schedule, 9, 1, 40));
        ASSERT_EQ(proposal.number, expected.number);
        ASSERT_EQ(proposal.group, expected.group);
      }
    } else {
      apply(*without, event);
      apply(*beside, event);
    }
    ASSERT_EQ(beside->recommend(), widened(without->recommend()));
    ASSERT_EQ(beside->digest(), without->digest());
    ASSERT_EQ(beside->version(), without->version());
  }
  std::vector<double> shares = without->describe().per_layer;
  if (!shares.empty())
    for (const int layer : {0, 4, 5}) shares.insert(shares.begin() + layer, 0.0);
  EXPECT_EQ(beside->describe().per_layer, shares);
  EXPECT_EQ(beside->outlook(), without->outlook());
  ASSERT_EQ(beside->costs().has_value(), without->costs().has_value());
  if (const auto costs = beside->costs()) {
    EXPECT_EQ(solve(*costs, beside->recommend(), 60, 1),
              widened(solve(*without->costs(), without->recommend(), 60, 1)));
  }
}

TEST_P(EveryPolicy, BoundsChangeInMidRunAndWhatWasLearnedStays) {
  for (const char* start : {"", "20,4,1,1,1,13"}) {
    PolicyConfig now = config();
    if (*start != '\0') now.start = parse_schedule(start);
    const auto policy = make_policy(now);
    auto restored = make_policy(now);
    int number = 0;
    constexpr int kBetween = kUnderSanitizers ? 12 : 48;
    for (const Event& event : random_events(11, 5 * kBetween)) {
      // The first change comes before anything was asked, the others in the middle of groups and batches.
      if (number % kBetween == 0) {
        constexpr const char* kChanges[] = {"2:3,0:-4,4-5:9-", "1-3:2-5", "", "0:-2,5:1", "3:7"};
        const Bounds bounds = parse_bounds(kChanges[number / kBetween]);
        const int64_t version = policy->version();
        for (Policy* one : {policy.get(), restored.get()}) one->bound(bounds);
        now = rebound(now, bounds);
        ASSERT_EQ(policy->version(), version + 1);
      }
      const bool restores = number++ % kEventsARestore == 0;
      if (restores) restored = restore_policy(now, restored->save());
      ASSERT_EQ(apply(*restored, event), apply(*policy, event)) << "event " << number;
      ASSERT_EQ(restored->digest(), policy->digest()) << "event " << number;
      ASSERT_NO_THROW(check_limits(policy->recommend(), limits_of(now))) << "event " << number;
      if (!restores) continue;
      const auto copy = restore_policy(now, policy->save());
      for (const Proposal& proposal : copy->ask(10)) {
        ASSERT_NO_THROW(check_limits(proposal.schedule, limits_of(now))) << "event " << number;
        ASSERT_NO_THROW(check_schedule(proposal.schedule, 6, 1, 40)) << "event " << number;
      }
    }
    EXPECT_EQ(restored->save(), policy->save());
    EXPECT_GT(policy->version(), 6);
  }
}

TEST_P(EveryPolicy, RefusesBoundsThatARunCannotChangeTo) {
  PolicyConfig whole = config();
  whole.bounds = parse_bounds("0:exact");
  const auto policy = make_policy(whole);
  EXPECT_THAT([&] { rebound(whole, parse_bounds("1:3")); },
              ThrowsMessage<InvalidArgument>(Names("exact", 0, "1:3", "none")));
  EXPECT_THAT([&] { policy->bound(parse_bounds("0:exact,1-5:-7")); },
              ThrowsMessage<InvalidArgument>(Names(35, 40)));
  EXPECT_NO_THROW(policy->bound(parse_bounds("0:exact,1-5:-8")));
}

TEST_P(EveryPolicy, SameSeedSameAsksOtherSeedOtherAsks) {
  PolicyConfig other = config();
  other.seed = 78;
  const auto text = [](const std::vector<Proposal>& proposals) {
    std::string all;
    for (const Proposal& proposal : proposals) all += proposal.schedule.to_string() + '\n';
    return all;
  };
  EXPECT_EQ(text(make_policy(config())->ask(20)), text(make_policy(config())->ask(20)));
  EXPECT_NE(text(make_policy(config())->ask(20)), text(make_policy(other)->ask(20)));
}

TEST_P(EveryPolicy, HowManyAreAskedAtOnceChangesNoProposal) {
  const auto at_once = make_policy(config());
  const auto one_by_one = make_policy(config());
  const std::vector<Proposal> together = at_once->ask(15);
  for (const Proposal& proposal : together) EXPECT_EQ(one_by_one->ask(1)[0].schedule, proposal.schedule);
  EXPECT_EQ(at_once->save(), one_by_one->save());
}

TEST_P(EveryPolicy, UnknownAndRepeatedOutcomesChangeNothing) {
  const auto policy = make_policy(config());
  policy->ask(5);
  EXPECT_EQ(policy->tell({2, 0.5}), TellResult::kLearned);
  policy->give_up(4);
  const std::string before = policy->save();
  EXPECT_EQ(policy->tell({2, 1.0}), TellResult::kDuplicate);
  EXPECT_EQ(policy->tell({4, 1.0}), TellResult::kDuplicate);
  EXPECT_EQ(policy->tell({5, 1.0}), TellResult::kUnknown);
  EXPECT_EQ(policy->tell({-1, 1.0}), TellResult::kUnknown);
  policy->give_up(2);
  policy->give_up(4);
  policy->give_up(5);
  policy->give_up(-1);
  EXPECT_EQ(policy->save(), before);
}

TEST_P(EveryPolicy, RewardsMayLieInAnyFiniteRange) {
  const auto policy = make_policy(config());
  double reward = -700;
  for (const Proposal& proposal : policy->ask(12)) {
    EXPECT_EQ(policy->tell({proposal.number, reward += 55.5}), TellResult::kLearned);
  }
  EXPECT_GT(policy->version(), 0);
  EXPECT_NO_THROW(check_schedule(policy->recommend(), 6, 1, 40));
}

TEST_P(EveryPolicy, ClimbsTheUtilityOfADivergenceOfWhichLessIsBetter) {
  const auto policy = make_policy({.name = learner_name(), .layers = 8, .total = 64, .seed = 3});
  for (int k = 0; k < 600; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    policy->tell({.number = proposal.number,
                  .reward = 0.001 + 0.2 / (0.25 + proposal.schedule.samples[5]),
                  .kind = RewardKind::kDivergence});
  }
  const std::vector<int32_t> learned = policy->recommend().samples;
  EXPECT_EQ(std::ranges::max(learned), learned[5]);
  EXPECT_GE(learned[5], 12);
}

std::vector<std::string> policies_that_mix_kinds() {
  std::vector<std::string> names = policy_names();
  std::erase_if(names, [](const std::string& name) { return !find_learner(name)->mixes_kinds; });
  return names;
}

class PolicyThatMixesKinds : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Learners, PolicyThatMixesKinds, ::testing::ValuesIn(policies_that_mix_kinds()));

TEST_P(PolicyThatMixesKinds, LearnsFromBothInOneRun) {
  const auto policy =
      make_policy({.name = GetParam(), .layers = 8, .total = 64, .seed = 3, .divergence_episodes = 200});
  for (int k = 0; k < 400; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    const double samples = proposal.schedule.samples[5];
    const bool divergence = proposal.reward_kind ? *proposal.reward_kind == RewardKind::kDivergence : k < 200;
    policy->tell({.number = proposal.number,
                  .reward = divergence ? 0.2 / (0.25 + samples) : samples / (8 + samples),
                  .kind = divergence ? RewardKind::kDivergence : RewardKind::kAnswers});
    if (k == 199) {
      EXPECT_GE(policy->recommend().samples[5], 12);
    }
  }
  EXPECT_EQ(std::ranges::max(policy->recommend().samples), policy->recommend().samples[5]);
}

TEST_P(EveryPolicy, DeclaresWhatPeopleNeedToUseIt) {
  const Learner& learner = *find_learner(learner_name());
  EXPECT_FALSE(learner.summary.empty());
  EXPECT_GE(learner.max_policy_lag, 0);
  for (const Parameter& declared : learner.parameters) {
    EXPECT_TRUE(accepts(declared, declared.initial)) << declared.name;
    EXPECT_LT(declared.least, declared.most) << declared.name;
    EXPECT_FALSE(declared.help.empty()) << declared.name;
    EXPECT_EQ(std::ranges::count(learner.parameters, declared.name, &Parameter::name), 1) << declared.name;
    EXPECT_EQ(declared.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"),
              std::string_view::npos)
        << declared.name;
  }
}

TEST_P(EveryPolicy, ParametersLeftOutHaveTheirDefaults) {
  PolicyConfig spelled_out = config();
  PolicyConfig left_out = config();
  left_out.parameters.clear();
  for (const Parameter& declared : find_learner(learner_name())->parameters) {
    spelled_out.parameters[std::string(declared.name)] = declared.initial;
  }
  const auto one = make_policy(spelled_out);
  const auto other = make_policy(left_out);
  for (const Event& event : random_events(3, 100)) EXPECT_EQ(apply(*one, event), apply(*other, event));
  EXPECT_EQ(one->save(), other->save());
}

TEST_P(EveryPolicy, ParametersOutOfRangeAndUnknownOnesAreRefusedTogether) {
  PolicyConfig wrong = config();
  wrong.parameters = {{"no_such_parameter", 1}};
  std::vector<::testing::Matcher<std::string>> named{Names("no_such_parameter", 1)};
  for (const Parameter& declared : find_learner(learner_name())->parameters) {
    wrong.parameters[std::string(declared.name)] = declared.most + 1;
    named.push_back(Names(option_name(declared)));
  }
  EXPECT_THAT([&] { validate(wrong); }, ThrowsMessage<InvalidArgument>(AllOfArray(named)));
  for (const Parameter& declared : find_learner(learner_name())->parameters) {
    wrong = config();
    wrong.parameters[std::string(declared.name)] = std::nan("");
    EXPECT_THROW(validate(wrong), InvalidArgument) << declared.name;
    if (!declared.whole) continue;
    wrong.parameters[std::string(declared.name)] = declared.least + 0.5;
    EXPECT_THROW(validate(wrong), InvalidArgument) << declared.name;
  }
}

TEST_P(EveryPolicy, ARewardThatIsNotFiniteIsRefusedAndChangesNothing) {
  const auto policy = make_policy(config());
  policy->ask(2);
  const std::string before = policy->save();
  for (const double reward : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    EXPECT_THAT([&] { policy->tell({0, reward}); }, ThrowsMessage<InvalidArgument>(Names("proposal 0")));
  }
  EXPECT_EQ(policy->save(), before);
  EXPECT_EQ(policy->tell({0, 1.0}), TellResult::kLearned);
}

TEST_P(EveryPolicy, RestoredAtAnyPointBehavesBitForBitAsTheOriginal) {
  for (int seed = 0; seed < repeats(8); ++seed) {
    const auto original = make_policy(config());
    auto restored = make_policy(config());
    int number = 0;
    for (const Event& event : random_events(static_cast<uint32_t>(seed), 200)) {
      const bool restores = number++ % kEventsARestore == 0;
      if (restores) restored = restore_policy(config(), restored->save());
      ASSERT_EQ(apply(*restored, event), apply(*original, event)) << "seed " << seed;
      if (restores) {
        ASSERT_EQ(restored->save(), original->save()) << "seed " << seed;
      }
    }
    EXPECT_GT(original->version(), 5) << "seed " << seed << ": the events must reach updates";
  }
}

TEST_P(EveryPolicy, AReplayOfTheSameCallsGivesTheSameState) {
  const auto first = make_policy(config());
  const auto second = make_policy(config());
  for (const Event& event : random_events(99, 500)) apply(*first, event);
  for (const Event& event : random_events(99, 500)) apply(*second, event);
  EXPECT_EQ(first->save(), second->save());
}

TEST_P(EveryPolicy, DescribesALayerEachOrNoneUnderPlainNames) {
  const auto policy = make_policy(config());
  for (const Event& event : random_events(5, 200)) {
    apply(*policy, event);
    const Description described = policy->describe();
    if (!described.per_layer.empty()) {
      ASSERT_EQ(described.per_layer.size(), 6u);
    }
    std::vector<std::string> names{described.layer_name};
    for (const auto& scalar : described.scalars) {
      EXPECT_TRUE(std::isfinite(scalar.value)) << scalar.name;
      EXPECT_EQ(described.find(scalar.name), &scalar.value) << scalar.name << " is there twice";
      names.push_back(scalar.name);
    }
    for (const std::string& name : names) {
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_"), std::string::npos) << name;
      EXPECT_FALSE(name.empty());
    }
  }
}

TEST_P(EveryPolicy, TheDigestIsThatOfTheStateAndChangesWithEveryUpdate) {
  const auto policy = make_policy(config());
  std::set<uint64_t> digests{policy->digest()};
  int number = 0;
  for (const Event& event : random_events(11, kUnderSanitizers ? 150 : 300)) {
    const int64_t version = policy->version();
    apply(*policy, event);
    if (number++ % kEventsARestore == 0) {
      EXPECT_EQ(restore_policy(config(), policy->save())->digest(), policy->digest());
    }
    if (policy->version() > version) {
      EXPECT_TRUE(digests.insert(policy->digest()).second) << "version " << policy->version();
    }
  }
  EXPECT_GT(digests.size(), 5u);
}

TEST_P(EveryPolicy, AsksFarAheadWithoutAnswers) {
  const auto policy = make_policy(config());
  for (int round = 0; round < 100; ++round) EXPECT_EQ(policy->ask(100).size(), 100u);
  EXPECT_EQ(policy->version(), 0);
}

TEST_P(EveryPolicy, AStateOfAnotherConfigurationIsRefusedNamingTheFields) {
  const auto policy = make_policy(config());
  PolicyConfig other = config();
  other.seed = 5;
  other.total = 41;
  EXPECT_THAT([&] { restore_policy(other, policy->save()); },
              ThrowsMessage<CorruptFile>(Names("seed", 77, 5, "total", 40, 41)));
}

TEST_P(EveryPolicy, ADamagedStateIsRefused) {
  const auto policy = make_policy(config());
  policy->ask(5);
  policy->tell({0, 0.5});
  const std::string whole = policy->save();
  const size_t step = 1 + whole.size() / (kUnderSanitizers ? 8 : 2000);
  for (size_t length = 0; length < whole.size(); length += step) {
    ASSERT_THROW(restore_policy(config(), whole.substr(0, length)), CorruptFile) << length;
  }
  for (const char* text : {"null", "[]", "{}", "\xff\xfe", "{\"format\":\"allot-policy-0\"}"}) {
    EXPECT_THROW(restore_policy(config(), text), CorruptFile) << text;
  }
  const nlohmann::json state = nlohmann::json::parse(whole);
  for (const auto& [field, value] : state.at("learner").items()) {
    for (const nlohmann::json& wrong :
         {nlohmann::json("text"), nlohmann::json(-1), nlohmann::json::array({1, 2}), nlohmann::json()}) {
      if (wrong.is_number() && value.is_number_float()) continue;  // may well be -1
      nlohmann::json damaged = state;
      damaged["learner"][field] = wrong;
      EXPECT_THROW(restore_policy(config(), damaged.dump()), CorruptFile) << field << " = " << wrong;
    }
  }
}

}  // namespace
}  // namespace allot::policy
