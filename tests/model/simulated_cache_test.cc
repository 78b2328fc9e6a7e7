// Fidelity under a simulated cache of fewer bits, against a decoder of its own whose keys and values are
// rounded, and what it promises of batches, modes and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cache_format.h"
#include "model/engine.h"
#include "model/fidelity.h"
#include "tests/message_of.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/reference_decoder.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::CacheFormat;
using kernels::CacheFormats;
using kernels::DType;
using kernels::Estimator;
using ::testing::Each;
using ::testing::SizeIs;

const std::filesystem::path kHead64 = kCheckpoints / "llama_head64";

FidelityPair exact_over(const char* formats) {
  return {.attention = {.estimator = Estimator::kExact},
          .simulated_cache = kernels::parse_cache_formats(formats)};
}

FidelityPair sampled_over(const char* formats, std::vector<int32_t> samples = {3, 4}) {
  return {.samples = std::move(samples),
          .attention = {.estimator = Estimator::kSys},
          .simulated_cache = kernels::parse_cache_formats(formats)};
}

// Mean KL of the rows of logits.
double divergence(const std::vector<std::vector<double>>& dense,
                  const std::vector<std::vector<double>>& other) {
  const auto log_softmax = [](std::vector<double> logits) {
    const double largest = std::ranges::max(logits);
    double sum = 0;
    for (const double x : logits) sum += std::exp(x - largest);
    for (double& x : logits) x -= largest + std::log(sum);
    return logits;
  };
  double sum = 0;
  for (size_t t = 0; t < dense.size(); ++t) {
    const std::vector<double> p = log_softmax(dense[t]), q = log_softmax(other[t]);
    for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i]) * (p[i] - q[i]);
  }
  return sum / static_cast<double>(dense.size());
}

// An element in the middle of two numbers may go either way in float32 and in double precision.
TEST(SimulatedCache, OfExactAttentionDivergesAsADecoderWhoseKeysAndValuesAreRounded) {
  for (const char* model : {"llama_head64", "qwen2_head64_group7"}) {
    Engine engine(kCheckpoints / model, small_engine());
    const ReferenceDecoder reference(kCheckpoints / model);
    const FidelityText text = text_of(3, 40);
    const auto dense = reference.logits(text.ids, {});
    for (const char* formats : {"high", "fp8", "fp8-scaled", "int8", "dtype/high", "dtype/fp8-scaled",
                                "dtype/int8", "fp8/fp8", "int8/fp8-scaled", "bfloat16/bfloat16"}) {
      SCOPED_TRACE(std::string(model) + " over " + formats);
      ReferenceRun run;
      run.cache = kernels::parse_cache_formats(formats);
      const double expected = divergence(dense, reference.logits(text.ids, run));
      const Fidelity result = engine.fidelity({&text, 1}, std::vector{exact_over(formats)}, {}).at(0);
      EXPECT_GT(expected, 1e-9);
      EXPECT_NEAR(result.divergence, expected, 0.05 * expected);
      EXPECT_EQ(result.sampled_tokens, 0);
      EXPECT_EQ(result.positions, 40);
    }
  }
}

TEST(SimulatedCache, OfSamplesDivergesAsADecoderThatDrawsByRoundedKeys) {
  Engine engine(kHead64, small_engine());
  const ReferenceDecoder reference(kHead64);
  const FidelityText text = text_of(5, 40);
  ReferenceRun run{.estimator = Estimator::kSys, .samples = {3, 4}, .key = kKey, .question = 5};
  run.cache = kernels::parse_cache_formats("int8/fp8");
  const double expected = divergence(reference.logits(text.ids, {}), reference.logits(text.ids, run));
  const std::vector<Fidelity> results = engine.fidelity(
      {&text, 1}, std::vector{sampled_over("int8/fp8"), sampled_over("dtype")}, {.positions = true});
  EXPECT_NEAR(results[0].divergence, expected, 0.02 * expected);
  EXPECT_NE(results[0].divergences, results[1].divergences);
}

TEST(SimulatedCache, OfPlanesOfTwoIsNearerThanBfloat16AndThatNearerThanEightBits) {
  Engine engine(kHead64, small_engine());
  const FidelityText text = text_of(3, 60);
  std::vector<FidelityPair> pairs;
  for (const char* formats : {"split", "bfloat16", "high", "fp8"}) pairs.push_back(exact_over(formats));
  const std::vector<Fidelity> results = engine.fidelity({&text, 1}, pairs, {});
  EXPECT_GT(results[0].divergence, 0);
  for (size_t i = 1; i < results.size(); ++i)
    EXPECT_GT(results[i].divergence, 2 * results[i - 1].divergence) << i;
}

TEST(SimulatedCache, OfWhatTheCacheHasAnywayLeavesEveryBit) {
  const FidelityText text = text_of(3, 57);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Engine engine(kHead64, small_engine(dtype));
    std::vector<FidelityPair> pairs{sampled_over("dtype/dtype"),
                                    sampled_over("fp8/fp8"),
                                    {.samples = {3, 4}, .attention = {.estimator = Estimator::kSys}},
                                    exact_over("dtype/dtype")};
    if (dtype == DType::kBFloat16) pairs.push_back(exact_over("bfloat16/bfloat16"));
    const std::vector<Fidelity> results = engine.fidelity({&text, 1}, pairs, {.positions = true});
    EXPECT_EQ(results[0].divergences, results[2].divergences);
    EXPECT_NE(results[0].divergences, results[1].divergences);
    for (size_t i = 3; i < results.size(); ++i) EXPECT_THAT(results[i].divergences, Each(0.0f)) << i;
  }
}

// Passes are shared by pairs of the same formats alone, and a text that is longer than a pass reads what the
// passes before have rounded. Up to the rounding of products, which may depend on the rows of a pass.
TEST(SimulatedCache, OfManyPairsAtOnceIsThatOfEachAlone) {
  EngineOptions options = small_engine();
  options.prefill_chunk_tokens = 40;
  Engine engine(kHead64, options);
  std::vector<FidelityText> texts;
  for (uint32_t i = 0; i < 4; ++i) texts.push_back(text_of(i, 20 + 31 * i, 5 + static_cast<int32_t>(9 * i)));
  std::vector<FidelityPair> pairs;
  for (const char* formats : {"dtype", "high", "fp8", "bfloat16", "dtype/fp8"}) {
    for (size_t text = 0; text < texts.size(); ++text) {
      for (FidelityPair pair : {exact_over(formats), sampled_over(formats)}) {
        pair.text = text;
        pairs.push_back(std::move(pair));
      }
    }
  }
  for (const FidelityMode mode : {FidelityMode::kPrefill, FidelityMode::kDecode, FidelityMode::kReply}) {
    std::vector<Fidelity> alone;
    for (const FidelityPair& pair : pairs) {
      FidelityPair only = pair;
      only.text = 0;
      alone.push_back(engine.fidelity({&texts[pair.text], 1}, {&only, 1}, {.mode = mode}).at(0));
    }
    for (const bool timed : {false, true}) {
      const std::vector<Fidelity> together = engine.fidelity(texts, pairs, {.mode = mode, .timed = timed});
      ASSERT_THAT(together, SizeIs(pairs.size()));
      for (size_t i = 0; i < pairs.size(); ++i) {
        EXPECT_NEAR(together[i].divergence, alone[i].divergence, 0.01 * alone[i].divergence + 1e-9)
            << "pair " << i;
        EXPECT_EQ(together[i].sampled_tokens, alone[i].sampled_tokens) << "pair " << i;
      }
    }
    // Every second pair is exact; those of the formats before would not do in their place.
    for (size_t i = 8; i < pairs.size(); i += 2) {
      EXPECT_GT(std::abs(alone[i].divergence - alone[i - 8].divergence), 0.1 * alone[i].divergence)
          << "pair " << i << "; the test proves nothing";
    }
  }
}

// The prompt, too: what attends exactly reads rounded keys.
TEST(SimulatedCache, HoldsForAnExactPrompt) {
  Engine engine(kHead64, small_engine());
  const FidelityText text = text_of(6, 60, 41);
  const std::vector<FidelityPair> pairs{sampled_over("fp8/fp8"), sampled_over("dtype")};
  const std::vector<Fidelity> results =
      engine.fidelity({&text, 1}, pairs, {.mode = FidelityMode::kDecode, .positions = true});
  EXPECT_GT(results[0].divergences.at(0), 1e-7) << "of the prompt's last token, which is exact";
  EXPECT_LT(results[1].divergences.at(0), 1e-9);
}

TEST(SimulatedCache, IsGoneInThePassesBehind) {
  Engine engine(kHead64, small_engine());
  const FidelityText text = text_of(3, 40);
  const std::vector<float> before = engine.logits(text.ids, {}, kKey, 0);
  (void)engine.fidelity({&text, 1}, std::vector{exact_over("fp8/fp8")}, {});
  EXPECT_EQ(engine.logits(text.ids, {}, kKey, 0), before);
}

TEST(SimulatedCache, OfPlanesIsRefusedForHeadsThatCannotBeRotated) {
  Engine engine(kCheckpoints / "llama_rope_head24", small_engine());
  const FidelityText text = text_of(3, 20);
  const auto refusal = [&](const char* formats) {
    return message_of<Unsupported>([&] {
      (void)engine.fidelity({&text, 1}, std::vector{exact_over(formats)}, {});
    });
  };
  EXPECT_THAT(refusal("split"), Names("split/dtype", 24, 8, 256));
  EXPECT_THAT(refusal("dtype/high"), Names("dtype/high", 24));
  EXPECT_NO_THROW((void)engine.fidelity({&text, 1}, std::vector{exact_over("fp8/int8")}, {}));
}

}  // namespace
}  // namespace allot::model
