// Fidelity on a CUDA device against the logits of whole passes there. Skipped with a message where there is
// no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/estimator.h"
#include "model/engine.h"
#include "model/fidelity.h"
#include "tests/model/checkpoints.h"
#include "tests/model/cuda/engine_runs.h"
#include "tests/model/generate.h"

namespace allot::model {
namespace {

using kernels::Estimator;
using ::testing::SizeIs;

FidelityText text_of(uint32_t seed, size_t length, int32_t prompt_tokens = 1) {
  return {.ids = random_prompt(seed, length), .prompt_tokens = prompt_tokens, .key = kKey, .question = seed};
}

double divergence_of(const float* dense, const float* sampled) {
  const auto log_softmax = [](const float* logits) {
    const double largest = *std::max_element(logits, logits + kVocabulary);
    double sum = 0;
    for (int32_t i = 0; i < kVocabulary; ++i) sum += std::exp(logits[i] - largest);
    std::vector<double> logs;
    for (int32_t i = 0; i < kVocabulary; ++i) logs.push_back(logits[i] - largest - std::log(sum));
    return logs;
  };
  const std::vector<double> p = log_softmax(dense), q = log_softmax(sampled);
  double divergence = 0;
  for (int32_t i = 0; i < kVocabulary; ++i) divergence += std::exp(p[i]) * (p[i] - q[i]);
  return divergence;
}

// One text and one pair: every product has as many rows as in the passes of logits(), and so the same bits.
TEST_F(CudaEngine, FidelityOfOneTextIsThatOfTheLogitsOfBothPasses) {
  for (const int32_t chunk : {8192, 37}) {
    Engine engine(kDeviceModel, on_device({.prefill_chunk_tokens = chunk}));
    const FidelityText text = text_of(5, 101);
    const std::vector<int32_t> samples{7, 5};
    const Fidelity result =
        engine
            .fidelity(
                {&text, 1},
                std::vector<FidelityPair>{{.samples = samples, .attention = engine.options().attention}},
                {.positions = true})
            .at(0);
    ASSERT_THAT(result.divergences, SizeIs(101));
    if (chunk == 37) continue;  // logits are projected chunk by chunk there, in products of other sizes
    const std::vector<float> dense = engine.logits(text.ids, {}, text.key, text.question);
    const std::vector<float> sampled = engine.logits(text.ids, samples, text.key, text.question);
    for (size_t t = 0; t < 101; ++t) {
      const double expected = divergence_of(&dense[t * kVocabulary], &sampled[t * kVocabulary]);
      EXPECT_NEAR(result.divergences[t], expected, 1e-5 * expected + 1e-6) << t;
    }
    EXPECT_GT(result.divergence, 1e-4);
  }
}

// Texts of many sizes, some longer than a pass and than a block of logits, one of them in each pair of modes.
TEST_F(CudaEngine, FidelityOfManyPairsIsThatOfTheCpu) {
  std::vector<FidelityText> texts;
  std::vector<FidelityPair> pairs;
  for (uint32_t i = 0; i < 12; ++i) {
    const size_t length = 1 + 71 * i % 330;
    texts.push_back(text_of(i, length, 1 + static_cast<int32_t>(length / 2)));
    for (const Estimator estimator : {Estimator::kSys, Estimator::kThreshold})
      for (const int32_t samples : {6, 40})
        pairs.push_back({.text = i, .samples = {samples, samples}, .attention = {.estimator = estimator}});
    pairs.push_back({.text = i, .samples = {}});
  }
  const double noise = rounding_noise(kDeviceModel);
  for (const FidelityMode mode : {FidelityMode::kPrefill, FidelityMode::kDecode, FidelityMode::kReply}) {
    Engine device(kDeviceModel, on_device({.prefill_chunk_tokens = 200})), cpu(kDeviceModel, on_cpu());
    const std::vector<Fidelity> ours = device.fidelity(texts, pairs, {.mode = mode}),
                                expected = cpu.fidelity(texts, pairs, {.mode = mode});
    // Rounding makes a few draws pick other keys, so means over all texts are held against each other.
    std::vector<double> our_sum(5), expected_sum(5), positions(5);
    for (size_t i = 0; i < pairs.size(); ++i) {
      ASSERT_EQ(ours[i].positions, expected[i].positions) << i;
      ASSERT_EQ(ours[i].sampled_tokens, expected[i].sampled_tokens) << i;
      const auto count = static_cast<double>(ours[i].positions);
      our_sum[i % 5] += count * ours[i].divergence;
      expected_sum[i % 5] += count * expected[i].divergence;
      positions[i % 5] += count;
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(our_sum[i] / expected_sum[i], 1, 0.2) << "case " << i;
      EXPECT_GT(our_sum[i] / positions[i], 10 * noise * noise) << "case " << i;
    }
    // The divergence of logits that differ by independent noise is at most half its variance.
    EXPECT_LT(our_sum[4] / positions[4], 10 * noise * noise) << "exact attention";
  }
}

}  // namespace
}  // namespace allot::model
