#include "model/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::Each;
using ::testing::ThrowsMessage;

DrawRow draw_number(uint32_t number) {
  return {.key = {.run_seed = 3, .sampling_seed = 4}, .question = number, .layer = kTokenLayer};
}

TEST(Argmax, TakesTheLowestIndexOfATieAtEveryLength) {
  for (size_t size : {1, 2, 15, 16, 17, 33, 100}) {
    std::vector<float> values(size, -1);
    values[size / 2] = 2;
    values[size - 1] = 2;
    EXPECT_EQ(argmax(values), static_cast<int32_t>(size / 2)) << size;
  }
}

TEST(Argmax, AcceptsInfinitiesAndReportsNan) {
  std::vector<float> values(40, 0);
  values[3] = -INFINITY;
  values[20] = INFINITY;
  EXPECT_EQ(argmax(values), 20);
  for (size_t place : {0, 17, 39}) {
    std::vector<float> broken = values;
    broken[place] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(argmax(broken), -1) << place;
  }
}

TEST(TokenSampler, ChoosesNothingFromLogitsThatAreNotNumbers) {
  for (const double temperature : {0, 1}) {
    std::vector<float> logits{1, std::numeric_limits<float>::quiet_NaN()};
    EXPECT_EQ(TokenSampler().choose(logits, {.temperature = temperature}, {}, draw_number(0)), -1);
  }
}

TEST(TokenSampler, GreedyAppliesTheRepetitionPenaltyFirst) {
  const std::vector<float> logits{2.0f, 1.8f, -0.1f};
  std::vector<float> scratch = logits;
  EXPECT_EQ(TokenSampler().choose(scratch, {}, std::vector<int32_t>{0}, draw_number(0)), 0);
  EXPECT_EQ(
      TokenSampler().choose(scratch, {.repetition_penalty = 1.2}, std::vector<int32_t>{0}, draw_number(0)),
      1);
  // A negative logit is multiplied, so that a penalty never makes a token more likely.
  std::vector<float> negative{-1.0f, -1.1f};
  EXPECT_EQ(
      TokenSampler().choose(negative, {.repetition_penalty = 1.2}, std::vector<int32_t>{0}, draw_number(0)),
      1);
}

TEST(TokenSampler, SameDrawGivesTheSameTokenAndOthersDiffer) {
  const std::vector<float> logits(50, 0.5f);
  const auto choose = [&](uint32_t number) {
    std::vector<float> scratch = logits;
    return TokenSampler().choose(scratch, {.temperature = 1}, {}, draw_number(number));
  };
  std::set<int32_t> tokens;
  for (uint32_t number = 0; number < 40; ++number) {
    EXPECT_EQ(choose(number), choose(number));
    tokens.insert(choose(number));
  }
  EXPECT_GT(tokens.size(), 15u);
}

TEST(TokenSampler, ATinyNucleusIsTheBestToken) {
  std::vector<float> chosen;
  for (uint32_t number = 0; number < 100; ++number) {
    std::vector<float> logits{0, 3, 2.9f, 3};
    chosen.push_back(
        TokenSampler().choose(logits, {.temperature = 2, .top_p = 1e-9}, {}, draw_number(number)));
  }
  EXPECT_THAT(chosen, Each(1));
}

// With u the 32 random bits of a row over 2^32, the choice is where u of the nucleus' mass ends, counted in
// order of id.
TEST(TokenSampler, WalksTheNucleusInOrderOfId) {
  // Weights 1/4, 1, 1/8, 1/2 of the largest: the nucleus of 0.9 leaves out the third (1/15 of the total).
  const float ln2 = std::log(2.0f);
  const std::vector<float> logits{-2 * ln2, 0, -3 * ln2, -ln2};
  for (uint32_t number = 0; number < 200; ++number) {
    std::vector<float> scratch = logits;
    const double part = draw_bits(draw_number(number), 0) * 0x1p-32 * 1.75;
    const int32_t expected = part < 0.25 ? 0 : part < 1.25 ? 1 : 3;
    EXPECT_EQ(TokenSampler().choose(scratch, {.temperature = 1, .top_p = 0.9}, {}, draw_number(number)),
              expected)
        << "part " << part;
  }
}

TEST(TokenSampler, TakesTheLowestIdsOfATieIntoTheNucleus) {
  // Four equal tokens of a quarter each: 0.6 of them takes three.
  std::vector<int> counts(5);
  for (uint32_t number = 0; number < 300; ++number) {
    std::vector<float> logits{1, -40, 1, 1, 1};
    ++counts[TokenSampler().choose(logits, {.temperature = 1, .top_p = 0.6}, {}, draw_number(number))];
  }
  EXPECT_THAT(counts, ::testing::ElementsAre(::testing::Gt(60), 0, ::testing::Gt(60), ::testing::Gt(60), 0));
}

TEST(TokenSampler, ChoosesTheBestTokenWhereTheLargestLogitIsInfinite) {
  std::vector<float> one_infinite{1, INFINITY, 2};
  EXPECT_EQ(TokenSampler().choose(one_infinite, {.temperature = 1}, {}, draw_number(0)), 1);
  std::vector<float> nothing(7, -INFINITY);
  EXPECT_EQ(TokenSampler().choose(nothing, {.temperature = 1, .top_p = 0.5}, {}, draw_number(0)), 0);
}

TEST(TokenSampler, NeverChoosesAMaskedToken) {
  for (uint32_t number = 0; number < 200; ++number) {
    std::vector<float> logits{-INFINITY, 1, -INFINITY, 0, -INFINITY};
    const int32_t token = TokenSampler().choose(logits, {.temperature = 5}, {}, draw_number(number));
    EXPECT_TRUE(token == 1 || token == 3) << token;
  }
}

// Rows, parameters and resulting probabilities from transformers' own warpers
// (tests/data/make_parity_golden.py).
TEST(TokenSampler, DrawsFromTheDistributionOfTransformers) {
  std::ifstream file(std::string(ALLOT_SOURCE_DIR) + "/tests/data/parity/sampling.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 5u);
  constexpr uint32_t kDraws = 20000;
  TokenSampler sampler;
  for (const nlohmann::json& item : cases) {
    const SamplingParams params{item["temperature"], item["top_p"], item["repetition_penalty"]};
    const std::vector<int32_t> seen = item["seen"];
    const std::vector<float> logits = item["logits"];
    const std::vector<double> expected = item["probabilities"];
    std::vector<int> counts(logits.size());
    for (uint32_t number = 0; number < kDraws; ++number) {
      std::vector<float> scratch = logits;
      ++counts[sampler.choose(scratch, params, seen, draw_number(number))];
    }
    for (size_t id = 0; id < logits.size(); ++id) {
      SCOPED_TRACE("token " + std::to_string(id) + " of " + item.dump());
      if (expected[id] == 0) {
        EXPECT_EQ(counts[id], 0);
      } else {
        const double deviation = std::sqrt(kDraws * expected[id] * (1 - expected[id]));
        EXPECT_NEAR(counts[id], kDraws * expected[id], 4.5 * deviation + 1e-9);
      }
    }
  }
}

TEST(SamplingParams, RefusesValuesOutOfRangeByName) {
  EXPECT_NO_THROW(validate(SamplingParams{.temperature = 0.7, .top_p = 0.9, .repetition_penalty = 1.1}));
  const auto refuses = [](SamplingParams params, const char* field) {
    EXPECT_THAT([&] { validate(params); }, ThrowsMessage<InvalidArgument>(Names(field)));
  };
  refuses({.temperature = -1}, "temperature is -1");
  refuses({.temperature = NAN}, "temperature is nan");
  refuses({.top_p = 0}, "top_p is 0");
  refuses({.top_p = 1.5}, "top_p is 1.5");
  refuses({.repetition_penalty = 0}, "repetition_penalty is 0");
}

}  // namespace
}  // namespace allot::model
