#include "evaluation/calibration.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "policy/draws.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using policy::Schedule;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

constexpr int kLayers = 6;

// The even schedule's divergence is 0.15 on average; layer 0 makes most of it, texts differ by up to a factor
// of 2, draws by 10 %.
double divergence(const Schedule& schedule, size_t text, uint32_t sampling_seed) {
  double sum = 0;
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer)
    sum += (layer == 0 ? 16.0 : 1.0) / std::max(schedule.samples[layer], 1);
  policy::DrawStream draws(sampling_seed, text, policy::draw_purpose("calibration-test"));
  return 0.03 * sum * (1 + 0.2 * static_cast<double>(text % 6)) * (0.9 + 0.2 * draws.uniform());
}

// Remembers what it was asked.
struct Recorder {
  struct Call {
    std::vector<size_t> texts;
    std::vector<Schedule> schedules;
    uint32_t sampling_seed;
  };
  std::vector<Call> calls = {};

  MeasureFidelity measure(double (*of)(const Schedule&, size_t, uint32_t)) {
    return [this, of](std::span<const size_t> texts, std::span<const Schedule> schedules, uint32_t seed) {
      calls.push_back({{texts.begin(), texts.end()}, {schedules.begin(), schedules.end()}, seed});
      std::vector<TextFidelity> measured;
      for (const Schedule& schedule : schedules)
        for (const size_t text : texts)
          measured.push_back({.tokens = 20,
                              .positions = 10 + static_cast<int64_t>(text % 3),
                              .divergence = of(schedule, text, seed),
                              .top1_agreement = 0.9});
      return measured;
    };
  }
};

CalibrationOptions small() {
  return {.layers = kLayers,
          .seed = 3,
          .steps = 12,
          .pairs = 3,
          .texts_per_step = 5,
          .check_texts = 8,
          .most_samples = 64};
}

Calibration run(Recorder* recorder, size_t texts,
                double (*of)(const Schedule&, size_t, uint32_t) = divergence) {
  policy::DivergenceModel model(kLayers, 4);
  return calibrate(4 * kLayers, texts, small(), recorder->measure(of), &model, [](int64_t, int64_t) {});
}

TEST(Calibration, FindsAScheduleOfLessDivergence) {
  Recorder recorder;
  const Calibration found = run(&recorder, 40);
  EXPECT_EQ(found.schedule.total(), 24);
  EXPECT_GE(found.schedule.samples[0], 8);
  EXPECT_LT(found.ratio, 0.85);
  EXPECT_LT(found.ratio_low, found.ratio);
  EXPECT_GT(found.ratio_high, found.ratio);
  EXPECT_LT(found.ratio_high, 1) << "on common texts and draws the two differ by the same factor";
  EXPECT_NEAR(found.ratio, found.learned.mean / found.uniform.mean, 1e-12);
  EXPECT_GT(found.learned.standard_error, 0);
  EXPECT_EQ(found.measurements, 12 * 6);
  ASSERT_EQ(found.sensitivities.size(), 6u);
  EXPECT_LT(found.sensitivities[0]->one_fewer, 0);
}

TEST(Calibration, ChoosesAndMeasuresOnTextsAndDrawsThatTheSearchHasNotSeen) {
  Recorder recorder;
  const Calibration found = run(&recorder, 40);
  ASSERT_EQ(recorder.calls.size(), 14u);
  std::set<uint32_t> seeds;
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(recorder.calls[i].texts.size(), 5u);
    EXPECT_THAT(recorder.calls[i].texts, Each(Lt(32u)));
    EXPECT_EQ(recorder.calls[i].schedules.size(), 6u);
    seeds.insert(recorder.calls[i].sampling_seed);
  }
  EXPECT_NE(recorder.calls[0].texts, recorder.calls[1].texts);
  for (size_t i = 12; i < 14; ++i) {
    EXPECT_EQ(recorder.calls[i].texts.size(), 8u);
    EXPECT_THAT(recorder.calls[i].texts, Each(Ge(32u)));
    EXPECT_EQ(recorder.calls[i].schedules.front(), policy::uniform_schedule(kLayers, 4));
    seeds.insert(recorder.calls[i].sampling_seed);
  }
  EXPECT_EQ(seeds.size(), 14u) << "no two have a sampling seed in common";
  EXPECT_EQ(recorder.calls[13].schedules.size(), 2u);
  EXPECT_TRUE(found.other_texts);
  EXPECT_EQ(found.texts, 8);
}

TEST(Calibration, AFewTextsServeTwice) {
  Recorder one;
  const Calibration found = run(&one, 1);
  EXPECT_FALSE(found.other_texts);
  EXPECT_EQ(found.texts, 1);
  Recorder three;
  EXPECT_EQ(run(&three, 3).texts, 1);
  EXPECT_THAT(three.calls.front().texts, Each(Lt(2u)));
}

TEST(Calibration, IsNeverWorseThanTheEvenSchedule) {
  // What is found in the search is the contrary of what holds at the end.
  Recorder recorder;
  const Calibration found = run(&recorder, 40, [](const Schedule& schedule, size_t text, uint32_t seed) {
    if (seed < 0x80000000) return divergence(schedule, text, seed);
    const int32_t off = std::abs(schedule.samples[0] - 4);
    return 0.1 + 0.01 * off;
  });
  EXPECT_EQ(found.schedule, policy::uniform_schedule(kLayers, 4));
  EXPECT_EQ(found.ratio, 1);
  EXPECT_EQ(found.learned, found.uniform);

  // And where only the choice was lucky.
  Recorder second;
  const Calibration unlucky = run(&second, 40, [](const Schedule& schedule, size_t text, uint32_t seed) {
    if (seed != 0x80000001) return divergence(schedule, text, seed);
    return schedule == policy::uniform_schedule(kLayers, 4) ? 0.1 : 0.2;
  });
  EXPECT_EQ(unlucky.schedule, policy::uniform_schedule(kLayers, 4));
}

TEST(Calibration, TheSameOptionsGiveTheSameResult) {
  Recorder first, second;
  EXPECT_EQ(to_json(run(&first, 40)).dump(), to_json(run(&second, 40)).dump());
}

TEST(Calibration, DivergencesThatVanishAreNoFailure) {
  Recorder recorder;
  const Calibration found = run(&recorder, 10, [](const Schedule&, size_t, uint32_t) { return 0.0; });
  EXPECT_EQ(found.schedule, policy::uniform_schedule(kLayers, 4));
  EXPECT_EQ(found.learned.mean, 0);
}

// The even schedule of N samples has 0.5 / N times 6 * 21.
std::optional<int64_t> least(double margin, int64_t first, std::vector<int64_t>* asked) {
  policy::DivergenceModel model(kLayers, 4);
  Recorder recorder;
  return least_total(
      margin, first, small(),
      [&](int64_t total) {
        asked->push_back(total);
        return calibrate(total, 40, small(), recorder.measure(divergence), &model, [](int64_t, int64_t) {});
      },
      model);
}

TEST(LeastTotal, IsFoundInAFewTotals) {
  for (const int64_t first : {12, 24, 200}) {
    std::vector<int64_t> asked;
    const std::optional<int64_t> found = least(0.25, first, &asked);
    ASSERT_TRUE(found.has_value()) << first;
    EXPECT_EQ(asked.front(), first);
    EXPECT_LE(asked.size(), static_cast<size_t>(kMostTotals));
    const int64_t before =
        std::ranges::max(asked, {}, [&](int64_t total) { return total < *found ? total : 0; });
    EXPECT_GE(before, *found - std::max<int64_t>(2, *found / 10)) << "a total just below was too small";
  }
}

TEST(LeastTotal, ThereIsNoneWhereNoTotalIsEnough) {
  std::vector<int64_t> asked;
  EXPECT_FALSE(least(1e-5, 24, &asked).has_value());
  EXPECT_EQ(asked.back(), 64 * kLayers) << "the most that is tried";
  EXPECT_THAT(asked, testing::SizeIs(testing::Le(4u)));
  std::vector<int64_t> small_ones;
  EXPECT_EQ(least(10, kLayers, &small_ones), kLayers);
  EXPECT_THAT(small_ones, testing::ElementsAre(kLayers)) << "the least there is needs no second";
}

TEST(LeastTotal, IsFoundByAnythingThatATotalMayBeEnoughFor) {
  for (const int64_t wanted : {6, 13, 24, 100, 384}) {
    for (const int64_t first : {6, 24, 384}) {
      std::vector<int64_t> asked;
      const std::optional<int64_t> found = least_total(first, small(), [&](int64_t total) {
        asked.push_back(total);
        return total >= wanted;
      });
      ASSERT_TRUE(found.has_value()) << wanted << " from " << first;
      EXPECT_GE(*found, wanted);
      // Far from where it begins eight totals leave more of a gap.
      EXPECT_LE(static_cast<double>(*found), 1.15 * static_cast<double>(wanted) + 1) << "from " << first;
      EXPECT_EQ(asked.front(), first);
      EXPECT_LE(asked.size(), static_cast<size_t>(kMostTotals));
    }
  }
  EXPECT_FALSE(least_total(24, small(), [](int64_t) { return false; }).has_value());
}

TEST(LeastTotal, RefusesAMarginThatNothingKeeps) {
  std::vector<int64_t> asked;
  EXPECT_THAT(message_of<InvalidArgument>([&] { least(0, 24, &asked); }), Names(0, 24));
  EXPECT_THAT(message_of<InvalidArgument>([&] { least(0.1, 5, &asked); }), Names(5, 6));
}

// Layer 0 exact, layer 1 pinned, the others with a most or a least.
CalibrationOptions bounded() {
  CalibrationOptions options = small();
  options.bounds = policy::parse_bounds("0:exact,1:2,2-3:-5,4:3-");
  return options;
}

// Layers differ more than in divergence(), and the pinned layer most.
double bounded_divergence(const Schedule& schedule, size_t text, uint32_t sampling_seed) {
  EXPECT_EQ(schedule.samples.at(0), kExactLayer) << schedule.to_string();
  constexpr double kWeights[] = {0, 30, 1, 2, 1, 12};
  double sum = 0;
  for (size_t layer = 1; layer < schedule.samples.size(); ++layer)
    sum += kWeights[layer] / std::max(schedule.samples[layer], 1);
  policy::DrawStream draws(sampling_seed, text, policy::draw_purpose("calibration-test"));
  return 0.03 * sum * (0.9 + 0.2 * draws.uniform());
}

TEST(Calibration, BoundsHoldInTheSearchTheCandidatesAndTheResult) {
  const CalibrationOptions options = bounded();
  policy::DivergenceModel model(layers_that_sample(options), 4);
  for (const int64_t total : {20, 30}) {
    Recorder recorder;
    const Calibration found =
        calibrate(total, 40, options, recorder.measure(bounded_divergence), &model, [](int64_t, int64_t) {});
    const policy::Limits limits = policy::limits_of(options.bounds, kLayers, total, 1);
    const Schedule uniform = policy::even_schedule(found.schedule);
    for (const Recorder::Call& call : recorder.calls)
      for (const Schedule& schedule : call.schedules)
        EXPECT_TRUE(limits.keeps(schedule) || (&call == &recorder.calls.back() && schedule == uniform))
            << schedule.to_string();
    EXPECT_EQ(recorder.calls.back().schedules.front(), uniform) << "no bounds but exact layers";
    EXPECT_TRUE(limits.keeps(found.schedule)) << found.schedule.to_string();
    EXPECT_EQ(found.schedule.total(), total);
    EXPECT_FALSE(found.even);
    EXPECT_GE(found.schedule.samples[5], total / 3) << "the layer that matters most of those that are free";

    ASSERT_EQ(found.sensitivities.size(), 6u);
    EXPECT_FALSE(found.sensitivities[0].has_value()) << "an exact layer has none";
    EXPECT_GT(found.sensitivities[1]->one_more, found.sensitivities[2]->one_more) << "what the pin costs";
    EXPECT_EQ(policy::solve(found.costs.value(), found.schedule, total, 1), found.schedule);
    const nlohmann::ordered_json json = to_json(found);
    EXPECT_EQ(json["samples"][0], "exact");
    EXPECT_EQ(json["sensitivities"].size(), 5u);
    EXPECT_EQ(json["sensitivities"][0]["layer"], 1);
  }
}

TEST(Calibration, WhereNothingIsBetterTheEvenScheduleIsKeptAsCloseAsTheBoundsLetIt) {
  CalibrationOptions options = small();
  options.bounds = policy::parse_bounds("0:9");
  policy::DivergenceModel model(kLayers, 4);
  Recorder recorder;
  const Calibration found =
      calibrate(24, 40, options, recorder.measure([](const Schedule& schedule, size_t text, uint32_t seed) {
        if (seed < 0x80000000) return divergence(schedule, text, seed);
        return schedule == Schedule{{9, 3, 3, 3, 3, 3}} ? 0.2 : schedule.samples[0] == 4 ? 0.1 : 0.3;
      }),
                &model, [](int64_t, int64_t) {});
  EXPECT_TRUE(found.even);
  EXPECT_EQ(found.schedule, (Schedule{{9, 3, 3, 3, 3, 3}}));
  EXPECT_NEAR(found.ratio, 2, 1e-12) << "of what the bounds cost, beside the even schedule without them";
}

TEST(Calibration, PinsThatLeaveOneScheduleNeedNoSearch) {
  CalibrationOptions options = small();
  options.bounds = policy::parse_bounds("0:9,1-5:3");
  policy::DivergenceModel model(kLayers, 4);
  Recorder recorder;
  const Calibration found =
      calibrate(24, 40, options, recorder.measure(divergence), &model, [](int64_t, int64_t) {});
  EXPECT_EQ(found.schedule, (Schedule{{9, 3, 3, 3, 3, 3}}));
  EXPECT_EQ(recorder.calls.size(), 1u);
  EXPECT_LT(found.ratio, 1);
  EXPECT_TRUE(found.sensitivities.empty());
}

TEST(LeastTotal, LiesWithinWhatTheBoundsLeave) {
  CalibrationOptions options = bounded();
  EXPECT_EQ(totals_to_try(options).least, 2 + 1 + 1 + 3 + 1);
  EXPECT_EQ(totals_to_try(options).most, 5 * 64);
  options.bounds = policy::parse_bounds("0:exact,1:2,2-5:-7");
  EXPECT_EQ(totals_to_try(options).most, 2 + 4 * 7);
  const auto least_of = [&](double margin, std::vector<int64_t>* asked) {
    policy::DivergenceModel model(layers_that_sample(options), 4);
    Recorder recorder;
    return least_total(
        margin, 20, options,
        [&](int64_t total) {
          asked->push_back(total);
          return calibrate(total, 40, options, recorder.measure(bounded_divergence), &model,
                           [](int64_t, int64_t) {});
        },
        model);
  };
  std::vector<int64_t> asked, too_many;
  const std::optional<int64_t> found = least_of(0.58, &asked);
  ASSERT_TRUE(found.has_value());
  EXPECT_LT(*found, 30);
  EXPECT_FALSE(least_of(0.01, &too_many).has_value()) << "the pin alone costs more";
  EXPECT_EQ(too_many.back(), 30) << "the most that the bounds allow";
}

TEST(Calibration, RefusesWhatDoesNotFit) {
  Recorder recorder;
  EXPECT_THAT(message_of<InvalidArgument>([&] { run(&recorder, 0); }), Names("no texts"));
  policy::DivergenceModel model(kLayers, 4);
  CalibrationOptions options = small();
  options.check_texts = 0;
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                calibrate(24, 10, options, recorder.measure(divergence), &model, [](int64_t, int64_t) {});
              }),
              Names(5, 0));
  options = small();
  options.bounds = policy::parse_bounds("0:exact,3:20");
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                calibrate(23, 10, options, recorder.measure(divergence), &model, [](int64_t, int64_t) {});
              }),
              Names("0:exact,3:20", 24, 23));
}

TEST(Calibration, ItsJsonHasAllThatWasFound) {
  Recorder recorder;
  const Calibration found = run(&recorder, 40);
  const nlohmann::ordered_json json = to_json(found);
  EXPECT_EQ(json["total"], 24);
  EXPECT_EQ(json["samples"], found.schedule.samples);
  EXPECT_EQ(json["uniform"]["divergence"], found.uniform.mean);
  EXPECT_EQ(json["learned"]["standard_error"], found.learned.standard_error);
  EXPECT_EQ(json["ratio_interval_95"][1], found.ratio_high);
  EXPECT_EQ(json["sensitivities"].size(), 6u);
  EXPECT_EQ(json["sensitivities"][5]["layer"], 5);
  EXPECT_EQ(json["sensitivities"][5]["one_more"], found.sensitivities[5]->one_more);
}

}  // namespace
}  // namespace allot::evaluation
