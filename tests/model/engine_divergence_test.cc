// One engine's distributions against another's, on the CPU.
#include "model/engine_divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/names.h"

namespace allot::model {
namespace {

EngineOptions as(kernels::DType dtype) {
  return {.dtype = dtype, .cache_tokens = 1024};
}

TEST(EngineDivergence, IsTheMeanOverThePositionsOfTheMode) {
  Engine exact(kLlamaGroup4, as(kernels::DType::kFloat32)),
      rounded(kLlamaGroup4, as(kernels::DType::kBFloat16));
  const FidelityText text{.ids = random_prompt(3, 60), .prompt_tokens = 41, .key = kKey, .question = 0};
  const std::vector<float> p = exact.logits(text.ids, {}, text.key, 0),
                           q = rounded.logits(text.ids, {}, text.key, 0);
  const auto of_positions = [&](size_t begin) {
    Fidelity expected;
    expected.positions = static_cast<int64_t>(60 - begin);
    for (size_t t = begin; t < 60; ++t) {
      const float *first = &p[t * kVocabulary], *second = &q[t * kVocabulary];
      double of_first = 0, of_second = 0, kl = 0;
      for (int32_t i = 0; i < kVocabulary; ++i) {
        of_first += std::exp(double{first[i]});
        of_second += std::exp(double{second[i]});
      }
      for (int32_t i = 0; i < kVocabulary; ++i) {
        const double log_p = first[i] - std::log(of_first), log_q = second[i] - std::log(of_second);
        kl += std::exp(log_p) * (log_p - log_q);
      }
      expected.divergence += kl / static_cast<double>(expected.positions);
      const bool same = std::max_element(first, first + kVocabulary) - first ==
                        std::max_element(second, second + kVocabulary) - second;
      expected.top1_agreement += same / static_cast<double>(expected.positions);
    }
    return expected;
  };
  for (const FidelityMode mode : {FidelityMode::kPrefill, FidelityMode::kDecode, FidelityMode::kReply}) {
    const Fidelity expected = of_positions(mode == FidelityMode::kPrefill ? 0 : 40);
    const Fidelity result = engine_divergence(exact, rounded, text, mode);
    EXPECT_EQ(result.positions, expected.positions);
    EXPECT_EQ(result.tokens, 60);
    EXPECT_GT(result.divergence, 1e-9);
    EXPECT_NEAR(result.divergence, expected.divergence, 0.01 * expected.divergence);
    EXPECT_NEAR(result.top1_agreement, expected.top1_agreement, 1e-9);
  }
}

TEST(EngineDivergence, OfAnEngineFromItselfIsNothing) {
  Engine engine(kLlamaGroup4, as(kernels::DType::kFloat32));
  const FidelityText text{.ids = random_prompt(3, 60), .key = kKey, .question = 0};
  const Fidelity result = engine_divergence(engine, engine, text, FidelityMode::kPrefill);
  EXPECT_EQ(result.divergence, 0);
  EXPECT_NEAR(result.top1_agreement, 1, 1e-9);
}

TEST(EngineDivergence, RefusesOtherVocabulariesAndAPromptThatIsNotPartOfTheText) {
  Engine engine(kLlamaGroup4, as(kernels::DType::kFloat32)), other(kTinyGsm, as(kernels::DType::kBFloat16));
  const auto refused = [&](Engine& measured, int32_t prompt_tokens) {
    const FidelityText text{
        .ids = random_prompt(3, 60), .prompt_tokens = prompt_tokens, .key = kKey, .question = 0};
    return message_of<InvalidArgument>(
        [&] { engine_divergence(engine, measured, text, FidelityMode::kReply); });
  };
  EXPECT_THAT(refused(other, 10), Names(kVocabulary, other.config().vocab_size));
  EXPECT_THAT(refused(engine, 61), Names(61, 60));
  EXPECT_THAT(refused(engine, 0), Names(0, 60));
}

}  // namespace
}  // namespace allot::model
