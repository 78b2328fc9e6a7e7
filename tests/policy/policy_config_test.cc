// What a learner is made with: configurations that are refused, and what holds for the list of learners.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "policy/draws.h"
#include "policy/learner.h"
#include "policy/policy.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::ThrowsMessage;

TEST(PolicyConfig, ValidationReportsEveryFaultAtOnce) {
  PolicyConfig config{.name = "sgd", .layers = 0, .total = -3, .floor = -1, .max_policy_lag = -2};
  EXPECT_THAT([&] { validate(config); },
              ThrowsMessage<InvalidArgument>(Names("sgd", "pairs", "reinforce-paper", "reinforce", "layers",
                                                   0, "total", -3, "floor", -1, "max-policy-lag", -2)));
  config.name = "pairs";
  config.parameters = {{"pairs_per_update", 0}, {"perturbation", 11}, {"perturbation_decay", 1.5},
                       {"gain", std::nan("")},  {"gain_offset", -1},  {"gain_decay", 2},
                       {"learning_rate", 0.1}};
  EXPECT_THAT([&] { validate(config); },
              ThrowsMessage<InvalidArgument>(Names("layers", 0, "pairs-per-update", 0, "perturbation", 11,
                                                   "perturbation-decay", 1.5, "gain", "nan", "gain-offset",
                                                   -1, "gain-decay", 2, "learning_rate", 0.1)));
}

TEST(Learners, TheDefaultIsTheFirstAndNamesAreUnique) {
  EXPECT_EQ(PolicyConfig{}.name, learners().front()->name);
  for (const Learner* learner : learners()) {
    EXPECT_EQ(std::ranges::count(policy_names(), learner->name), 1) << learner->name;
  }
}

TEST(Learners, EachHasItsOwnDraws) {
  const DrawPurpose one = draw_purpose("one"), other = draw_purpose("other");
  EXPECT_NE(DrawStream(1, 2, one).bits(), DrawStream(1, 2, other).bits());
  EXPECT_NE(DrawStream(1, 2, one).bits(), DrawStream(1, 2, DrawPurpose::kMultinomial).bits());
}

TEST(PolicyConfig, ATotalBelowTheFloorsIsNamedWithTheLeastTotal) {
  const PolicyConfig config{.layers = 8, .total = 15, .floor = 2};
  EXPECT_THAT([&] { make_policy(config); },
              ThrowsMessage<InvalidArgument>(Names("total", 15, 16, 2147483647)));
}

TEST(PolicyConfig, AStartThatDoesNotFitIsRefusedWithWhatItMustBe) {
  PolicyConfig config{.layers = 4, .total = 40, .floor = 2};
  const auto refusal = [&](const char* start) {
    config.start = parse_schedule(start);
    try {
      validate(config);
    } catch (const InvalidArgument& fault) {
      return std::string(fault.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal("20,10,8,2"), "");
  EXPECT_THAT(refusal("20,10,8,3"), Names("start", "20,10,8,3", 41, 40));
  EXPECT_THAT(refusal("20,10,10"), Names("start", "20,10,10", 3, 4));
  EXPECT_THAT(refusal("20,10,9,1"), Names("start", "layer 3", 1, 2));
  EXPECT_THAT(refusal("exact,20,10,10"), Names("start", "exact,20,10,10", "layer 0", "0:exact"));
}

TEST(PolicyConfig, BoundsThatDoNotFitAndAStartOutsideThemAreRefused) {
  PolicyConfig config{.layers = 4, .total = 40, .floor = 2, .bounds = parse_bounds("0-3:-9")};
  EXPECT_THAT([&] { validate(config); }, ThrowsMessage<InvalidArgument>(Names("bounds", "0-3:-9", 36, 40)));
  config.bounds = parse_bounds("1:4-6");
  config.start = parse_schedule("20,8,6,6");
  EXPECT_THAT([&] { validate(config); },
              ThrowsMessage<InvalidArgument>(Names("start", "20,8,6,6", "layer 1", 8, 4, 6)));
  config.start = parse_schedule("22,6,6,6");
  EXPECT_NO_THROW(validate(config));
}

TEST(Entropy, IsLogLayersForEqualSharesAndZeroForOneLayer) {
  EXPECT_NEAR(entropy({0.25, 0.25, 0.25, 0.25}), std::log(4), 1e-15);
  EXPECT_EQ(entropy({0, 1, 0}), 0);
}

}  // namespace
}  // namespace allot::policy
