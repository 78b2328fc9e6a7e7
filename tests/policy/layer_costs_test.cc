#include "policy/layer_costs.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "policy/allocation.h"
#include "policy/divergence_model.h"
#include "policy/draws.h"
#include "policy/policy.h"
#include "policy/rehearsal.h"
#include "policy/response_model.h"
#include "policy/simulation.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

// Curves of six layers, of several shapes, drawn from `number`.
LayerCosts drawn_costs(CostModel model, uint64_t number) {
  DrawStream draws(3, number, draw_purpose("layer-costs-test"));
  LayerCosts costs{.model = model, .unit = 8};
  for (int layer = 0; layer < 6; ++layer) {
    if (model == CostModel::kResponse) {
      std::vector<double> weights(kResponseCurves);
      weights[draws.below(kResponseCurves)] = 0.1 + draws.uniform();
      weights[draws.below(kResponseCurves)] += draws.uniform();
      costs.weights.push_back(std::move(weights));
    } else if (model == CostModel::kDivergence) {
      costs.scales.push_back(4 * draws.uniform() - 2);
      costs.exponents.push_back(0.6 + draws.uniform());
    } else {
      costs.shares.push_back(draws.uniform());
    }
  }
  return costs;
}

const Schedule kSix = uniform_schedule(6, 8);

TEST(LayerCosts, SolvesEveryTotalExactly) {
  for (const CostModel model : {CostModel::kResponse, CostModel::kDivergence}) {
    for (uint64_t number = 0; number < 10; ++number) {
      const LayerCosts costs = drawn_costs(model, number);
      for (const int64_t total : {6, 7, 20, 48, 120}) {
        std::vector<double> table;
        for (size_t layer = 0; layer < 6; ++layer)
          for (int64_t samples = 0; samples <= total; ++samples)
            table.push_back(costs.cost(layer, static_cast<double>(samples)));
        const Schedule found = solve(costs, kSix, total, 1);
        const Schedule best = cheapest_schedule(table, 6, total, 1);
        EXPECT_NEAR(total_cost(costs, found), total_cost(costs, best), 1e-9) << total;
        EXPECT_NO_THROW(check_schedule(found, 6, 1, total));
      }
    }
  }
}

TEST(LayerCosts, AGreaterTotalCostsLessAndTakesNothingFromAnyLayer) {
  for (const CostModel model : {CostModel::kResponse, CostModel::kDivergence}) {
    const LayerCosts costs = drawn_costs(model, 77);
    Schedule before = solve(costs, kSix, 12, 2);
    for (int64_t total = 13; total < 200; ++total) {
      const Schedule next = solve(costs, kSix, total, 2);
      EXPECT_LT(total_cost(costs, next), total_cost(costs, before)) << total;
      EXPECT_EQ(next.total(), total);
      for (size_t layer = 0; layer < 6; ++layer) EXPECT_GE(next.samples[layer], before.samples[layer]);
      before = next;
    }
  }
}

TEST(LayerCosts, SharesAreThoseOfThePolicyAtEveryTotal) {
  LayerCosts costs;
  costs.shares = {0.5, 0.3, 0.2};
  EXPECT_THAT(solve(costs, uniform_schedule(3, 1), 13, 1).samples, ElementsAre(6, 4, 3));
  EXPECT_THAT(solve(costs, uniform_schedule(3, 1), 33, 1).samples, ElementsAre(16, 10, 7));
}

TEST(LayerCosts, ExactLayersStayExactAndHaveNoPartInTheTotal) {
  const Schedule like{{kExactLayer, 8, 8, kExactLayer, 8, 8}};
  for (const CostModel model : {CostModel::kResponse, CostModel::kDivergence, CostModel::kShares}) {
    const Schedule found = solve(drawn_costs(model, 5), like, 40, 1);
    EXPECT_EQ(found.samples[0], kExactLayer);
    EXPECT_EQ(found.samples[3], kExactLayer);
    EXPECT_EQ(found.total(), 40);
  }
}

TEST(LayerCosts, AnAnchoredModelGivesTheScheduleAtItsTotalAndChangesNoMoreThanItMust) {
  for (const CostModel model : {CostModel::kResponse, CostModel::kDivergence}) {
    const LayerCosts costs = drawn_costs(model, 9);
    const Schedule own = solve(costs, kSix, 48, 1);
    EXPECT_EQ(anchored(costs, own, 1), costs);

    Schedule moved = own;
    const auto most = static_cast<size_t>(std::ranges::max_element(own.samples) - own.samples.begin());
    moved.samples[most] -= 3;
    moved.samples[(most + 1) % 6] += 3;
    const LayerCosts bent = anchored(costs, moved, 1);
    ASSERT_EQ(bent.model, model);
    EXPECT_EQ(solve(bent, kSix, 48, 1), moved);
    int changed = 0;
    for (size_t layer = 0; layer < 6; ++layer) changed += bent.cost(layer, 2) != costs.cost(layer, 2);
    EXPECT_LE(changed, 2);
  }
}

TEST(LayerCosts, LayersAtTheFloorMayBeWorthAnyPriceBelowThatOfTheOthers) {
  const LayerCosts costs = drawn_costs(CostModel::kDivergence, 1);
  const Schedule schedule{{1, 1, 30, 1, 14, 1}};
  const LayerCosts bent = anchored(costs, schedule, 1);
  EXPECT_EQ(bent.model, CostModel::kDivergence);
  EXPECT_EQ(solve(bent, kSix, 48, 1), schedule);
}

TEST(LayerCosts, WhatCannotBeBentBecomesTheSharesOfTheSchedule) {
  LayerCosts flat{.model = CostModel::kResponse, .unit = 8};
  flat.weights.assign(3, std::vector<double>(kResponseCurves));
  const Schedule schedule{{10, 4, 1}};
  const LayerCosts costs = anchored(flat, schedule, 1);
  EXPECT_EQ(costs.model, CostModel::kShares);
  EXPECT_EQ(solve(costs, schedule, 15, 1), schedule);
  LayerCosts equal;
  equal.shares = {1, 1, 1};
  EXPECT_EQ(solve(anchored(equal, schedule, 1), schedule, 15, 1), schedule);
}

TEST(LayerCosts, TotalsThatNoScheduleHasAreRefusedWithTheRange) {
  const LayerCosts costs = drawn_costs(CostModel::kResponse, 0);
  EXPECT_THAT([&] { (void)solve(costs, kSix, 11, 2); },
              testing::ThrowsMessage<InvalidArgument>(Names(11, 12, 2, 6)));
  EXPECT_THAT([&] { (void)solve(costs, kSix, kMostSolved + 1, 2); },
              testing::ThrowsMessage<InvalidArgument>(Names(kMostSolved + 1, kMostSolved)));
  EXPECT_THAT([&] { (void)solve(costs, uniform_schedule(5, 8), 40, 2); },
              testing::ThrowsMessage<InvalidArgument>(Names(6, "8,8,8,8,8")));
  const Schedule exact{std::vector<int32_t>(6, kExactLayer)};
  EXPECT_THROW((void)solve(drawn_costs(CostModel::kShares, 0), exact, 40, 0), InvalidArgument);
}

TEST(LayerCosts, TheFittedRangeIsWhatMostMeasurementsOfEachLayerReach) {
  std::vector<double> seen;
  for (int i = 0; i <= 20; ++i) seen.push_back(i);
  EXPECT_EQ(fitted_range(std::vector(4, seen)), (TotalRange{8, 72}));
  EXPECT_EQ(fitted_range(std::vector(3, std::vector<double>{5})), (TotalRange{15, 15}));
}

TEST(LayerCosts, NamesReadBack) {
  for (const CostModel model : {CostModel::kResponse, CostModel::kDivergence, CostModel::kShares})
    EXPECT_EQ(parse_cost_model(name(model)), model);
  EXPECT_THAT([] { (void)parse_cost_model("cubic"); },
              testing::ThrowsMessage<InvalidArgument>(Names("cubic", "divergence")));
}

TEST(LayerCosts, OfAResponseModelAreTheMeanOfWhatItsDrawsCost) {
  ResponseModel model(ResponseCurves::Form::kSmooth, 6, 48);
  model.add({.samples = {8, 8, 8, 8, 8, 8}, .reward = 0.5});
  DrawStream draws(1, 2, draw_purpose("layer-costs-test"));
  const std::vector<ResponseModel::State> states = {model.prior_draw(draws), model.prior_draw(draws),
                                                    model.prior_draw(draws)};
  std::vector<double> table(size_t{6} * 49);
  for (const ResponseModel::State& state : states) model.add_costs(state, 1.0 / 3, table);
  const LayerCosts costs = model.costs(states);
  for (size_t layer = 0; layer < 6; ++layer)
    for (size_t samples = 0; samples <= 48; ++samples)
      EXPECT_NEAR(costs.cost(layer, static_cast<double>(samples)), table[layer * 49 + samples], 1e-12);
  for (const auto& weights : costs.weights) EXPECT_THAT(weights, Each(Ge(0)));
}

TEST(LayerCosts, OfADivergenceModelGiveItsBestSchedules) {
  DivergenceModel model(6, 8);
  const LayerCosts truth = drawn_costs(CostModel::kDivergence, 4);
  DrawStream draws(1, 3, draw_purpose("layer-costs-test"));
  std::vector<Schedule> schedules;
  std::vector<double> divergences;
  for (int i = 0; i < 60; ++i) {
    std::vector<double> shares;
    for (int layer = 0; layer < 6; ++layer) shares.push_back(0.1 + draws.uniform());
    schedules.push_back(apportion(shares, 48, 1));
    divergences.push_back(total_cost(truth, schedules.back()));
  }
  model.add(schedules, divergences);
  model.fit(std::vector<double>(6, 8.0));
  for (const int64_t total : {24, 48, 96})
    EXPECT_EQ(solve(model.costs(), kSix, total, 1), model.best(total, 1));
  EXPECT_TRUE(model.costs().fitted->holds(48));
  EXPECT_FALSE(model.costs().fitted->holds(480));
}

// On the landscape of the embedded model, whose divergence is its noise.
std::unique_ptr<Policy> learned(const std::string& name, int episodes, int64_t divergence_episodes) {
  const Landscape tiny = tiny_landscape();
  std::unique_ptr<Policy> policy = make_policy({.name = name,
                                                .layers = 8,
                                                .total = 64,
                                                .seed = 2,
                                                .max_policy_lag = kNoPolicyLagLimit,
                                                .divergence_episodes = divergence_episodes});
  const Ground ground{
      .chance = [&](const Schedule& schedule, uint32_t question) { return tiny.chance(schedule, question); },
      .accuracy = [&](const Schedule& schedule) { return tiny.accuracy(schedule); },
      .divergence = [&](const Schedule& schedule, int64_t, int) { return tiny.noise(schedule); }};
  (void)rehearse(*policy, ground, {.episodes = episodes, .seed = 4, .checkpoints = {episodes}});
  return policy;
}

TEST(LayerCosts, OfAutoGiveTheScheduleThatItRecommends) {
  const Schedule even = even_schedule(8, 64, 1);
  struct Case {
    int episodes;
    int64_t divergence_episodes;
    CostModel model;
  };
  // Answers alone; in the search; in the answers after it.
  for (const auto& [episodes, divergence_episodes, model] :
       {Case{160, 0, CostModel::kResponse}, Case{40, 96, CostModel::kDivergence},
        Case{112, 96, CostModel::kDivergence}}) {
    const auto policy = learned("auto", episodes, divergence_episodes);
    const std::optional<LayerCosts> costs = policy->costs();
    ASSERT_TRUE(costs) << episodes;
    ASSERT_EQ(costs->model, model) << episodes;
    EXPECT_NE(policy->recommend(), even);
    EXPECT_EQ(solve(*costs, even, 64, 1), policy->recommend()) << episodes;
    EXPECT_TRUE(costs->fitted->holds(64)) << episodes;
    // Layer 0 is what matters, at every total.
    for (const int64_t total : {16, 32, 128})
      EXPECT_EQ(std::ranges::max(solve(*costs, even, total, 1).samples),
                solve(*costs, even, total, 1).samples[0]);
  }
}

TEST(LayerCosts, NobodyHasThemWhoKnowsNothingBetterThanTheEvenSchedule) {
  EXPECT_FALSE(learned("auto", 8, 0)->costs());
  EXPECT_FALSE(learned("pairs", 160, 0)->costs());
  // One that returns to it from a start, though it has answers enough for a model.
  const Schedule even = even_schedule(8, 64, 1);
  const Landscape tiny = tiny_landscape();
  PolicyConfig config{
      .name = "auto", .layers = 8, .total = 64, .seed = 2, .start = {{1, 5, 5, 5, 5, 5, 5, 33}}};
  const auto policy = make_policy(config);
  bool returned = false;
  for (int k = 0; k < 400 && !returned; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    // Whatever is not even is wrong.
    const int64_t off =
        std::ranges::max(proposal.schedule.samples) - std::ranges::min(proposal.schedule.samples);
    policy->tell({.number = proposal.number, .reward = off < 12 ? 0.9 : 0.1});
    returned = policy->recommend() == even;
  }
  ASSERT_TRUE(returned);
  EXPECT_FALSE(policy->costs());
}

}  // namespace
}  // namespace allot::policy
