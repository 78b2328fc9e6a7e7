// Fidelity against logits of whole passes, and what it promises of batches, modes and refusals.
#include "model/fidelity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "episode/samples.h"
#include "model/engine.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/delayed_backend.h"
#include "tests/model/generate.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

kernels::AttentionMethod method_of(Estimator estimator) {
  return {.estimator = estimator};
}

struct Expected {
  std::vector<double> divergences;
  std::vector<bool> agreements;
};

// By the definition, from the logits of an exact and of a sampled pass.
Expected expected_of(Engine& engine, const FidelityText& text, const std::vector<int32_t>& samples) {
  const std::vector<float> dense = engine.logits(text.ids, {}, text.key, text.question);
  const std::vector<float> sampled = engine.logits(text.ids, samples, text.key, text.question);
  const size_t vocabulary = dense.size() / text.ids.size();
  const auto log_softmax = [&](const float* logits) {
    const double largest = *std::max_element(logits, logits + vocabulary);
    double sum = 0;
    for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(logits[i] - largest);
    std::vector<double> logs;
    for (size_t i = 0; i < vocabulary; ++i) logs.push_back(logits[i] - largest - std::log(sum));
    return logs;
  };
  const auto top = [&](const float* logits) {
    return std::max_element(logits, logits + vocabulary) - logits;
  };
  Expected expected;
  for (size_t t = 0; t < text.ids.size(); ++t) {
    const float* const a = dense.data() + t * vocabulary;
    const float* const b = sampled.data() + t * vocabulary;
    const std::vector<double> p = log_softmax(a), q = log_softmax(b);
    double divergence = 0;
    for (size_t i = 0; i < vocabulary; ++i) divergence += std::exp(p[i]) * (p[i] - q[i]);
    expected.divergences.push_back(divergence);
    expected.agreements.push_back(top(a) == top(b));
  }
  return expected;
}

void expect_fidelity(const Fidelity& result, const Expected& expected) {
  ASSERT_THAT(result.divergences, SizeIs(expected.divergences.size()));
  EXPECT_EQ(result.positions, static_cast<int64_t>(expected.divergences.size()));
  double sum = 0, agreements = 0;
  for (size_t t = 0; t < expected.divergences.size(); ++t) {
    EXPECT_NEAR(result.divergences[t], expected.divergences[t], 1e-5 * expected.divergences[t] + 1e-7) << t;
    EXPECT_EQ(result.agreements[t], expected.agreements[t]) << t;
    sum += expected.divergences[t];
    agreements += expected.agreements[t];
  }
  const auto count = static_cast<double>(expected.divergences.size());
  EXPECT_NEAR(result.divergence, sum / count, 1e-5 * sum / count + 1e-7);
  EXPECT_NEAR(result.top1_agreement, agreements / count, 1e-12);
}

class FidelityOfDTypes : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, FidelityOfDTypes, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

TEST_P(FidelityOfDTypes, IsThatOfTheLogitsOfBothPasses) {
  for (const int32_t chunk : {2048, 13}) {
    EngineOptions options = small_engine(GetParam());
    options.prefill_chunk_tokens = chunk;
    Engine engine(kLlamaGroup4, options);
    for (const std::vector<int32_t>& samples : {std::vector<int32_t>{1, 2}, {40, 3}, {0, 8}}) {
      const FidelityText text = text_of(3, 57);
      const std::vector<Fidelity> results = engine.fidelity(
          std::vector{text}, std::vector<FidelityPair>{{.samples = samples, .attention = options.attention}},
          {.positions = true});
      ASSERT_THAT(results, SizeIs(1));
      expect_fidelity(results[0], expected_of(engine, text, samples));
      EXPECT_GT(results[0].divergence, 1e-4);
      EXPECT_EQ(results[0].tokens, 57);
      EXPECT_EQ(results[0].sampled_tokens, 57);
      EXPECT_GT(results[0].seconds, 0);
    }
  }
}

TEST(Fidelity, OfATrainedModelFallsWithTheSamples) {
  Engine engine(kTinyGsm, small_engine());
  const size_t layers = static_cast<size_t>(engine.config().num_layers);
  FidelityText text{.ids = {}, .key = kKey, .question = 5};
  for (int32_t i = 0; i < 120; ++i) text.ids.push_back(3 + i * 7 % 60);
  std::vector<FidelityPair> pairs;
  for (const int32_t samples : {2, 16, 128}) {
    pairs.push_back(
        {.samples = std::vector<int32_t>(layers, samples), .attention = method_of(Estimator::kSys)});
  }
  const std::vector<Fidelity> results = engine.fidelity(std::vector{text}, pairs, {.positions = true});
  for (size_t i = 0; i < pairs.size(); ++i)
    expect_fidelity(results[i], expected_of(engine, text, pairs[i].samples));
  EXPECT_GT(results[0].divergence, 2 * results[1].divergence);
  EXPECT_GT(results[1].divergence, 2 * results[2].divergence);
  EXPECT_LE(results[0].top1_agreement, results[2].top1_agreement);
}

TEST(Fidelity, OfExactAttentionAndOfSamplesForEveryKeyIsWhole) {
  Engine engine(kLlamaGroup4, small_engine());
  const std::vector<FidelityText> texts{text_of(1, 40)};
  const std::vector<FidelityPair> pairs{
      {.samples = {}, .attention = method_of(Estimator::kSys)},
      {.samples = {3, 3}, .attention = method_of(Estimator::kExact)},
      {.samples = {40, 40}, .attention = method_of(Estimator::kThreshold)},
      {.samples = {39, 2}, .attention = method_of(Estimator::kThreshold)},
  };
  const std::vector<Fidelity> results = engine.fidelity(texts, pairs, {.positions = true});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(results[i].divergence, 0) << i;
    EXPECT_THAT(results[i].divergences, Each(0.0f)) << i;
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(results[i].divergence, 1e-9) << i;
    EXPECT_EQ(results[i].top1_agreement, 1) << i;
  }
  EXPECT_GT(results[3].divergence, 1e-5);
  EXPECT_EQ(results[0].sampled_tokens, 0);
  EXPECT_EQ(results[2].sampled_tokens, 40);
}

// --- Batches

// Ragged texts, some longer than a pass, each under several methods and schedules.
struct Many {
  std::vector<FidelityText> texts;
  std::vector<FidelityPair> pairs;
};
Many many() {
  Many made;
  for (uint32_t i = 0; i < 9; ++i)
    made.texts.push_back(text_of(i, 1 + 23 * i % 110, 1 + static_cast<int32_t>(23 * i % 110) / 2));
  made.texts.push_back(text_of(20, 5, 5));
  for (size_t text = made.texts.size(); text-- > 0;) {
    if (text == 4) continue;  // has no pair
    for (const Estimator estimator : {Estimator::kThreshold, Estimator::kSys})
      for (const std::vector<int32_t>& samples : {std::vector<int32_t>{2, 5}, {7, 1}})
        made.pairs.push_back({.text = text, .samples = samples, .attention = method_of(estimator)});
  }
  return made;
}

class FidelityModes : public testing::TestWithParam<FidelityMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, FidelityModes,
                         testing::Values(FidelityMode::kPrefill, FidelityMode::kDecode, FidelityMode::kReply),
                         [](const auto& mode) {
                           return mode.param == FidelityMode::kPrefill  ? "prefill"
                                  : mode.param == FidelityMode::kDecode ? "decode"
                                                                        : "reply";
                         });

TEST_P(FidelityModes, OfManyPairsAtOnceIsThatOfEachAlone) {
  const Many made = many();
  EngineOptions options = small_engine();
  options.prefill_chunk_tokens = 60;
  Engine engine(kLlamaGroup4, options);
  std::vector<Fidelity> alone;
  for (const FidelityPair& pair : made.pairs) {
    FidelityPair only = pair;
    only.text = 0;
    alone.push_back(
        engine.fidelity({&made.texts[pair.text], 1}, {&only, 1}, {.mode = GetParam(), .positions = true})
            .at(0));
  }
  struct Shape {
    const char* what;
    bool timed;
    int32_t max_sequences;
    int64_t cache_tokens;
    int threads;
  };
  for (const Shape& shape :
       {Shape{"together", false, 256, 8192, 2}, Shape{"timed", true, 256, 8192, 1},
        Shape{"few parts a pass", false, 3, 8192, 2}, Shape{"pages for two texts", false, 256, 224, 2}}) {
    EngineOptions other = options;
    other.max_sequences = shape.max_sequences;
    other.cache_tokens = shape.cache_tokens;
    other.threads = shape.threads;
    Engine shaped(kLlamaGroup4, other);
    const std::vector<Fidelity> together = shaped.fidelity(
        made.texts, made.pairs, {.mode = GetParam(), .positions = true, .timed = shape.timed});
    ASSERT_THAT(together, SizeIs(made.pairs.size()));
    for (size_t i = 0; i < together.size(); ++i) {
      EXPECT_EQ(together[i].divergences, alone[i].divergences) << shape.what << ", pair " << i;
      EXPECT_EQ(together[i].agreements, alone[i].agreements) << shape.what << ", pair " << i;
      EXPECT_EQ(together[i].divergence, alone[i].divergence) << shape.what << ", pair " << i;
      EXPECT_EQ(together[i].positions, alone[i].positions) << shape.what << ", pair " << i;
      EXPECT_EQ(together[i].sampled_tokens, alone[i].sampled_tokens) << shape.what << ", pair " << i;
    }
  }
}

TEST(Fidelity, LeavesRequestsInFlightAlone) {
  const std::vector<std::vector<int32_t>> prompts{random_prompt(1, 30), random_prompt(2, 9)};
  const GenerateOptions sampled{.samples = {3, 5}, .key = kKey, .max_new_tokens = 12};
  Engine undisturbed(kLlamaGroup4, small_engine());
  const auto expected = tokens_of(generate(undisturbed, prompts, sampled));
  Engine engine(kLlamaGroup4, small_engine());
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request = request_of(i, prompts[i], sampled.max_new_tokens);
    request.ignore_eos = false;
    request.samples = sampled.samples;
    request.key = kKey;
    request.question = static_cast<uint32_t>(i);
    engine.submit(request);
  }
  for (int step = 0; step < 4; ++step) (void)engine.step();
  const Many made = many();
  (void)engine.fidelity(made.texts, made.pairs, {});
  EXPECT_EQ(tokens_of(run_to_end(engine)), expected);
}

TEST(Fidelity, OfOtherDrawsIsAnother) {
  Engine engine(kLlamaGroup4, small_engine());
  std::vector<FidelityText> texts(4, text_of(2, 50));
  texts[1].key.run_seed += 1;
  texts[2].key.sampling_seed += 1;
  texts[3].question += 1;
  std::vector<FidelityPair> pairs;
  for (size_t i = 0; i < texts.size(); ++i) pairs.push_back({.text = i, .samples = {3, 3}});
  const std::vector<Fidelity> results = engine.fidelity(texts, pairs, {});
  for (size_t i = 1; i < results.size(); ++i) EXPECT_NE(results[i].divergence, results[0].divergence) << i;
}

// --- Decoding

TEST(Fidelity, OfDecodingAfterAnExactPromptIsMeasuredFromThePromptsLastTokenOn) {
  Engine engine(kLlamaGroup4, small_engine());
  const FidelityText text = text_of(6, 60, 41);
  const std::vector<FidelityPair> pairs{{.samples = {2, 3}}};
  const Fidelity decoded =
      engine.fidelity({&text, 1}, pairs, {.mode = FidelityMode::kDecode, .positions = true}).at(0);
  EXPECT_EQ(decoded.positions, 20);
  EXPECT_EQ(decoded.sampled_tokens, 19);
  EXPECT_EQ(decoded.tokens, 60);
  ASSERT_THAT(decoded.divergences, SizeIs(20));
  EXPECT_LT(decoded.divergences[0], 1e-9) << "the first token of a reply comes from the exact prompt";
  for (size_t i = 1; i < 20; ++i) EXPECT_GT(decoded.divergences[i], 1e-8) << i;

  // What is kept of the prompt is exact: a text with the same end under a prompt that was sampled is not.
  const Fidelity sampled = engine.fidelity({&text, 1}, pairs, {.positions = true}).at(0);
  EXPECT_NE(decoded.divergences.back(), sampled.divergences.back());
  EXPECT_GT(sampled.divergences[40], 1e-8);
}

// Exact attention of many queries has kernels of its own on devices, for passes that are exact as a whole.
TEST(Fidelity, OfDecodingRunsPromptsInPassesThatAreExactAsAWhole) {
  DelayedPasses passes;
  int exact_passes = 0, sampled_passes = 0;
  passes.keeps = [&](const ForwardBatch& batch) {
    const auto dense = [](int32_t budget) { return budget == kernels::kDenseBudget; };
    const bool all_exact = std::ranges::all_of(batch.budgets, dense);
    ++(all_exact ? exact_passes : sampled_passes);
    if (all_exact) return;
    for (int64_t b = 0; b < batch.batch(); ++b) {
      if (dense(batch.budgets[b])) {
        EXPECT_EQ(batch.query_start[b + 1] - batch.query_start[b], 1);
      }
    }
  };
  Engine engine(kLlamaGroup4, small_engine(), delayed(&passes));
  const std::vector<FidelityText> texts{text_of(6, 60, 41), text_of(7, 50, 30), text_of(8, 9, 1)};
  std::vector<FidelityPair> pairs;
  for (size_t text = 0; text < 3; ++text)
    for (const int32_t samples : {2, 3}) pairs.push_back({.text = text, .samples = {samples, 3}});
  engine.fidelity(texts, pairs, {.mode = FidelityMode::kDecode});
  EXPECT_EQ(exact_passes, 2) << "the texts whole, and the prompts of all pairs together";
  EXPECT_EQ(sampled_passes, 1);
}

TEST(Fidelity, OfAReplyIsThatOfASampledPrefillBehindThePrompt) {
  Engine engine(kLlamaGroup4, small_engine());
  const FidelityText text = text_of(6, 60, 41);
  const std::vector<FidelityPair> pairs{{.samples = {2, 3}}};
  const Fidelity reply =
      engine.fidelity({&text, 1}, pairs, {.mode = FidelityMode::kReply, .positions = true}).at(0);
  const Fidelity all = engine.fidelity({&text, 1}, pairs, {.positions = true}).at(0);
  EXPECT_EQ(reply.positions, 20);
  EXPECT_EQ(reply.sampled_tokens, 60);
  ASSERT_THAT(reply.divergences, SizeIs(20));
  for (size_t i = 0; i < 20; ++i)
    EXPECT_NEAR(reply.divergences[i], all.divergences[40 + i], 1e-4 * all.divergences[40 + i] + 1e-7) << i;
}

// The same draws at the same positions: generation under dense prefill and teacher forcing agree on every
// greedy token, as the reference decoder holds generation to them (engine_test.cc).
TEST(Fidelity, OfDecodingAgreesWithTheReplyThatGenerationGives) {
  EngineOptions options = small_engine();
  options.attention.prefill = kernels::Prefill::kDense;
  Engine engine(kLlamaGroup4, options);
  const std::vector<int32_t> prompt = random_prompt(8, 30);
  const auto reply = [&](const std::vector<int32_t>& samples) {
    GenerationRequest request = request_of(0, prompt, 12);
    request.samples = samples;
    request.key = kKey;
    request.question = 77;
    engine.submit(request);
    return run_to_end(engine).at(0).tokens;
  };
  const std::vector<int32_t> samples{2, 2}, dense = reply({});
  FidelityText text{.ids = prompt, .prompt_tokens = 30, .key = kKey, .question = 77};
  text.ids.insert(text.ids.end(), dense.begin(), dense.end());
  const Fidelity fidelity = engine
                                .fidelity({&text, 1}, std::vector<FidelityPair>{{.samples = samples}},
                                          {.mode = FidelityMode::kDecode, .positions = true})
                                .at(0);
  const std::vector<int32_t> sampled = reply(samples);
  const size_t agreeing = std::ranges::mismatch(dense, sampled).in1 - dense.begin();
  ASSERT_LT(agreeing, dense.size()) << "the replies do not differ; the test proves nothing";
  for (size_t i = 0; i < agreeing; ++i) EXPECT_TRUE(fidelity.agreements[i]) << i;
  EXPECT_FALSE(fidelity.agreements[agreeing]);
}

TEST(Fidelity, OfDecodingAfterOneTokenIsThatOfASampledPrefill) {
  Engine engine(kLlamaGroup4, small_engine());
  const FidelityText text = text_of(9, 50, 1);
  const std::vector<FidelityPair> pairs{{.samples = {4, 2}}};
  const Fidelity decoded =
      engine.fidelity({&text, 1}, pairs, {.mode = FidelityMode::kDecode, .positions = true}).at(0);
  const Fidelity prefilled = engine.fidelity({&text, 1}, pairs, {.positions = true}).at(0);
  EXPECT_EQ(decoded.positions, 50);
  EXPECT_EQ(decoded.sampled_tokens, 49);
  ASSERT_EQ(decoded.divergences.size(), prefilled.divergences.size());
  for (size_t i = 0; i < 50; ++i)
    EXPECT_NEAR(decoded.divergences[i], prefilled.divergences[i], 1e-4 * prefilled.divergences[i] + 1e-7)
        << i;
}

// A head group of 4 query heads reads at most the rows of 4 x 3 samples, and at least one.
TEST(Fidelity, CountsValueRowsOfTheSampledQueriesAlone) {
  Engine engine(kLlamaGroup4, small_engine());
  const int64_t heads = int64_t{engine.config().num_kv_heads} * engine.config().num_layers;
  const FidelityText text = text_of(6, 60, 41);
  for (const FidelityMode mode : {FidelityMode::kPrefill, FidelityMode::kDecode}) {
    const Fidelity counted = engine
                                 .fidelity({&text, 1}, std::vector<FidelityPair>{{.samples = {3, 3}}},
                                           {.mode = mode, .count_rows = true})
                                 .at(0);
    EXPECT_EQ(counted.sampled_tokens, mode == FidelityMode::kPrefill ? 60 : 60 - 41);
    EXPECT_GE(counted.rows_read, counted.sampled_tokens * heads);
    EXPECT_LE(counted.rows_read, counted.sampled_tokens * heads * 4 * 3);
  }
}

TEST(Fidelity, OfExactLayersIsThatOfTheirLogitsAndTheirRowsAreNotCounted) {
  Engine engine(kLlamaGroup4, small_engine());
  const std::vector<FidelityText> texts{text_of(6, 60)};
  std::vector<FidelityPair> pairs;
  for (const std::vector<int32_t>& samples :
       {std::vector<int32_t>{kExactLayer, 3}, {3, kExactLayer}, {kExactLayer, kExactLayer}, {3, 3}})
    pairs.push_back({.samples = samples, .attention = method_of(Estimator::kSys)});
  const std::vector<Fidelity> results =
      engine.fidelity(texts, pairs, {.positions = true, .count_rows = true});
  for (size_t i = 0; i < pairs.size(); ++i)
    expect_fidelity(results[i], expected_of(engine, texts[0], pairs[i].samples));
  EXPECT_EQ(results[2].divergence, 0);
  EXPECT_EQ(results[2].rows_read, 0);
  const int64_t queries = 60 * int64_t{engine.config().num_kv_heads};
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(results[i].divergence, 1e-5);
    EXPECT_GE(results[i].rows_read, queries) << i;
    EXPECT_LE(results[i].rows_read, queries * 4 * 3) << i;
  }
  // The first layer sees the same queries and keys whatever the second does.
  EXPECT_LT(results[1].rows_read, results[3].rows_read);
}

TEST(Fidelity, KeepsPositionsOnlyWhenAskedTo) {
  Engine engine(kLlamaGroup4, small_engine());
  const FidelityText text = text_of(9, 20);
  const Fidelity result =
      engine.fidelity({&text, 1}, std::vector<FidelityPair>{{.samples = {4, 2}}}, {}).at(0);
  EXPECT_THAT(result.divergences, IsEmpty());
  EXPECT_THAT(result.agreements, IsEmpty());
  EXPECT_GT(result.divergence, 0);
  EXPECT_EQ(result.rows_read, 0) << "not counted";
  EXPECT_THAT(engine.fidelity({&text, 1}, {}, {}), IsEmpty());
}

// --- Refusals

class FidelityRefuses : public testing::Test {
 protected:
  void expect(const FidelityText& text, const FidelityPair& pair, const NamesMatcher& names,
              FidelityMode mode = FidelityMode::kPrefill) {
    EXPECT_THAT(
        [&] {
          (void)engine.fidelity({&text, 1}, {&pair, 1}, {.mode = mode});
        },
        ThrowsMessage<InvalidArgument>(names));
  }
  static EngineOptions options() {
    EngineOptions options = small_engine();
    options.cache_tokens = 320;
    return options;
  }
  const FidelityText whole = text_of(1, 30);
  Engine engine{kLlamaGroup4, options()};
};

TEST_F(FidelityRefuses, TextsItCannotRun) {
  const FidelityPair pair{.samples = {2, 2}};
  expect({.ids = {}}, pair, Names("text 0", "empty"));
  expect({.ids = {5, 96}}, pair, Names("text 0", "token id", 96, 1, 0, 95));
  expect(text_of(0, 513), pair, Names(513, 512, "positions"));
  expect(text_of(0, 321), pair, Names(321, 320, "KV cache"));
  expect(text_of(0, 10, 11), pair, Names("text 0", 11, 1, 10), FidelityMode::kDecode);
  expect(text_of(0, 10, 0), pair, Names("text 0", 0, 1, 10), FidelityMode::kDecode);
}

TEST_F(FidelityRefuses, PairsThatDoNotFitTheModelOrTheirMethod) {
  expect(whole, {.text = 1, .samples = {2, 2}}, Names("text 1", 1));
  expect(whole, {.samples = {4}}, Names("schedule", 1, 2));
  expect(whole, {.samples = {4, -2}}, Names("layer 1", -2));
  expect(whole, {.samples = {4, 1}, .attention = {.estimator = Estimator::kFlash, .tile = 16}},
         Names("layer 1", 1, "flash", 2));
  expect(whole, {.samples = {4, 4}, .attention = {.tile = 0}}, Names("tile", 0, 1));
  expect(whole, {.samples = {4, 4}, .attention = {.score_stage = kernels::ScoreStage::kBernoulli}},
         Names("score_budget", 0, 1));
}

TEST_F(FidelityRefuses, ToTakePagesOfRequestsInFlight) {
  engine.submit(request_of(0, random_prompt(3, 200), 90));
  (void)engine.step();
  expect(text_of(2, 40), {.samples = {2, 2}}, Names(40, 3, 1, "in flight"));
  EXPECT_THAT(run_to_end(engine), SizeIs(1));
  EXPECT_NO_THROW(
      (void)engine.fidelity(std::vector{text_of(2, 40)}, std::vector<FidelityPair>{{.samples = {2, 2}}}, {}));
}

TEST(Fidelity, OfAModelThatGivesNoNumbersIsRefused) {
  const CopiedCheckpoint copy(kLlamaGroup4);
  copy.make_norm_nan();
  Engine engine(copy.path(), small_engine());
  EXPECT_THAT(
      [&] {
        (void)engine.fidelity(std::vector{text_of(2, 20)}, std::vector<FidelityPair>{{.samples = {2, 2}}},
                              {});
      },
      ThrowsMessage<Error>(Names("not a number")));
}

}  // namespace
}  // namespace allot::model
