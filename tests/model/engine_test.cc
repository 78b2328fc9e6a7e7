// What the engine promises beyond agreeing with transformers (parity_test.cc): batching, schedules, draws.
#include "model/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "episode/samples.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/reference_decoder.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::vector<int32_t>> ragged_prompts(size_t count) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < count; ++i)
    prompts.push_back(random_prompt(static_cast<uint32_t>(i), 1 + (37 * i) % 90));
  return prompts;
}

// Sampled attention and sampled tokens: whatever could leak from a batch mate would show.
const GenerateOptions kSampledEverything{
    .samples = {3, 5},
    .key = kKey,
    .sampling = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.1},
    .max_new_tokens = 20};

// --- Sampled attention against the reference

class SampledLogits : public testing::TestWithParam<Estimator> {};

TEST_P(SampledLogits, UseTheDrawsOfTheReferenceInEveryLayer) {
  EngineOptions options = small_engine();
  options.attention.estimator = GetParam();
  options.prefill_chunk_tokens = 7;
  Engine engine(kLlamaGroup4, options);
  const std::vector<int32_t> ids = random_prompt(5, 24);
  const std::vector<int32_t> samples{6, 2};
  const std::vector<float> logits = engine.logits(ids, samples, kKey, 9);
  const auto expected =
      ReferenceDecoder(kLlamaGroup4)
          .logits(ids, {.estimator = GetParam(), .samples = samples, .key = kKey, .question = 9});
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t i = 0; i < expected[t].size(); ++i) {
      ASSERT_NEAR(logits[t * expected[t].size() + i], expected[t][i], 2e-4)
          << "position " << t << ", token " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Estimators, SampledLogits,
                         testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                         Estimator::kProp, Estimator::kFlash, Estimator::kThreshold,
                                         Estimator::kTopk),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST(Engine, SampledLogitsOfEveryArchitectureUseTheDrawsOfTheReference) {
  for (const char* name : {"llama_bias_sharded", "qwen2_group7", "qwen3_group4_tied", "mistral_group7"}) {
    Engine engine(kCheckpoints / name, small_engine());
    const std::vector<int32_t> ids = random_prompt(6, 24), samples{5, 3};
    const std::vector<float> logits = engine.logits(ids, samples, kKey, 4);
    const auto expected =
        ReferenceDecoder(kCheckpoints / name)
            .logits(ids, {.estimator = Estimator::kSys, .samples = samples, .key = kKey, .question = 4});
    for (size_t t = 0; t < ids.size(); ++t) {
      for (size_t i = 0; i < expected[t].size(); ++i) {
        ASSERT_NEAR(logits[t * expected[t].size() + i], expected[t][i], 2e-4)
            << name << ", position " << t << ", token " << i;
      }
    }
  }
}

TEST(Engine, LogitsOfAnEmptyScheduleAreThoseOfTheExactReference) {
  Engine engine(kCheckpoints / "qwen2_group7", small_engine());
  const std::vector<int32_t> ids = random_prompt(3, 20);
  const std::vector<float> logits = engine.logits(ids, {}, kKey, 0);
  const auto expected = ReferenceDecoder(kCheckpoints / "qwen2_group7").logits(ids, {});
  for (size_t i = 0; i < expected[19].size(); ++i)
    EXPECT_NEAR(logits[19 * expected[19].size() + i], expected[19][i], 1e-4);
}

TEST(Engine, ALayerWithoutSamplesContributesNothing) {
  Engine engine(kLlamaGroup4, small_engine());
  const std::vector<int32_t> ids = random_prompt(4, 10), samples{0, 4};
  const std::vector<float> logits = engine.logits(ids, samples, kKey, 1);
  const auto expected =
      ReferenceDecoder(kLlamaGroup4)
          .logits(ids, {.estimator = Estimator::kSys, .samples = samples, .key = kKey, .question = 1});
  for (size_t i = 0; i < expected[9].size(); ++i)
    EXPECT_NEAR(logits[9 * expected[9].size() + i], expected[9][i], 2e-4);
}

TEST(Engine, AScheduleOfExactLayersAloneGivesTheBitsOfExactAttention) {
  for (const kernels::AttentionMethod& method : kernels::testing::every_method()) {
    SCOPED_TRACE(kernels::describe(method));
    EngineOptions options = small_engine();
    options.attention = method;
    Engine engine(kLlamaGroup4, options);
    const std::vector<int32_t> ids = random_prompt(4, 30), exact(2, kExactLayer);
    EXPECT_EQ(engine.logits(ids, exact, kKey, 1), engine.logits(ids, {}, kKey, 1));
  }
}

TEST(Engine, AnExactLayerIsExactAndTheOthersStaySampled) {
  Engine engine(kLlamaGroup4, small_engine());
  const std::vector<int32_t> ids = random_prompt(4, 30);
  const auto logits = [&](const std::vector<int32_t>& samples) {
    return engine.logits(ids, samples, kKey, 1);
  };
  for (const std::vector<int32_t>& samples : {std::vector<int32_t>{kExactLayer, 3}, {3, kExactLayer}}) {
    const std::vector<float> mixed = logits(samples);
    const auto expected =
        ReferenceDecoder(kLlamaGroup4)
            .logits(ids, {.estimator = Estimator::kSys, .samples = samples, .key = kKey, .question = 1});
    const size_t vocabulary = expected[0].size();
    for (size_t t = 0; t < ids.size(); ++t)
      for (size_t i = 0; i < vocabulary; ++i)
        ASSERT_NEAR(mixed[t * vocabulary + i], expected[t][i], 2e-4) << "position " << t << ", token " << i;
    EXPECT_NE(mixed, logits({}));
    EXPECT_NE(mixed, logits({3, 3}));
  }
  EXPECT_NE(logits({kExactLayer, 3}), logits({3, kExactLayer}));
}

TEST(Engine, TokensUnderExactLayersAreThoseOfEachRequestAloneWhateverItsBatchMates) {
  const std::vector<std::vector<int32_t>> schedules = {
      {}, {kExactLayer, kExactLayer}, {kExactLayer, 2}, {2, kExactLayer}, {2, 2}};
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < schedules.size(); ++i) {
    requests.push_back(request_of(i, random_prompt(6, 25), 12));
    requests.back().key = kKey;
    requests.back().samples = schedules[i];
  }
  const auto tokens_of = [](const std::vector<GenerationRequest>& of) {
    Engine engine(kLlamaGroup4, small_engine());
    for (const GenerationRequest& request : of) engine.submit(request);
    std::map<uint64_t, std::vector<int32_t>> tokens;
    for (const GenerationResult& result : run_to_end(engine)) tokens[result.id] = result.tokens;
    return tokens;
  };
  const auto together = tokens_of(requests);
  EXPECT_EQ(together.at(1), together.at(0));
  for (const GenerationRequest& request : requests)
    EXPECT_EQ(tokens_of({request}).at(request.id), together.at(request.id)) << request.id;
}

int32_t argmax_of(const std::vector<double>& row) {
  return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
}

TEST(Engine, GenerationSamplesThePromptOnlyWhenPrefillIsSampled) {
  const std::vector<int32_t> prompt = random_prompt(8, 12);
  const std::vector<int32_t> samples{2, 3};
  const ReferenceDecoder reference(kLlamaGroup4);
  for (kernels::Prefill mode : {kernels::Prefill::kDense, kernels::Prefill::kSampled}) {
    EngineOptions options = small_engine();
    options.attention.prefill = mode;
    Engine engine(kLlamaGroup4, options);
    GenerationRequest request = request_of(0, prompt, 10);
    request.samples = samples;
    request.key = kKey;
    request.question = 77;
    engine.submit(request);
    const std::vector<int32_t> output = run_to_end(engine).at(0).tokens;
    ASSERT_THAT(output, SizeIs(10));

    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), output.begin(), output.end());
    const auto logits = reference.logits(
        ids, {.estimator = Estimator::kSys,
              .samples = samples,
              .dense_prefix = mode == kernels::Prefill::kDense ? static_cast<int64_t>(prompt.size()) : 0,
              .key = kKey,
              .question = 77});
    for (size_t i = 0; i < output.size(); ++i)
      EXPECT_EQ(output[i], argmax_of(logits[prompt.size() - 1 + i])) << i;
  }
}

// --- Independence of the batch

struct BatchShape {
  const char* what;
  int32_t max_sequences;
  int32_t prefill_chunk_tokens;
  int32_t page_size;
  int64_t cache_tokens;
  int threads;
};

class BatchIndependence : public testing::TestWithParam<DType> {};

TEST_P(BatchIndependence, TokensDependOnTheRequestAlone) {
  const std::vector<std::vector<int32_t>> prompts = ragged_prompts(23);
  Engine together(kLlamaGroup4, small_engine(GetParam()));
  const auto expected = tokens_of(generate(together, prompts, kSampledEverything));
  for (const BatchShape& shape :
       {BatchShape{"one slot", 1, 2048, 16, 8192, 1}, BatchShape{"few slots", 3, 2048, 16, 8192, 2},
        BatchShape{"small chunks", 64, 13, 16, 8192, 2}, BatchShape{"pages of one token", 64, 64, 1, 8192, 2},
        BatchShape{"a cache for two or three", 64, 2048, 8, 256, 2}}) {
    EngineOptions options = small_engine(GetParam());
    options.max_sequences = shape.max_sequences;
    options.prefill_chunk_tokens = shape.prefill_chunk_tokens;
    options.page_size = shape.page_size;
    options.cache_tokens = shape.cache_tokens;
    options.threads = shape.threads;
    Engine engine(kLlamaGroup4, options);
    EXPECT_EQ(tokens_of(generate(engine, prompts, kSampledEverything)), expected) << shape.what;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, BatchIndependence, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

TEST(Engine, ADenseSequenceIsUntouchedByBatchMatesThatSample) {
  const std::vector<std::vector<int32_t>> prompts = ragged_prompts(4);
  Engine engine(kLlamaGroup4, small_engine());
  const auto dense = tokens_of(generate(engine, prompts, {.max_new_tokens = 12}));
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request = request_of(i, prompts[i], 12);
    request.ignore_eos = false;
    if (i % 2 == 1) request.samples = {1, 2};
    engine.submit(request);
  }
  const auto mixed = tokens_of(run_to_end(engine));
  EXPECT_EQ(mixed[0], dense[0]);
  EXPECT_EQ(mixed[2], dense[2]);
  EXPECT_NE(mixed[1], dense[1]);
}

// --- Dense sequences

class DenseSequence : public testing::TestWithParam<kernels::AttentionMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, DenseSequence, testing::ValuesIn(kernels::testing::every_method()),
                         kernels::testing::method_name);

// As by itself under exact attention: in prompts that are sampled, in decoding, and whoever shares the pass.
TEST_P(DenseSequence, IsUntouchedByBatchMatesThatSample) {
  const std::vector<std::vector<int32_t>> prompts = ragged_prompts(6);
  Engine exact(kLlamaGroup4, small_engine());
  const auto dense = tokens_of(generate(exact, prompts, {.max_new_tokens = 12}));
  EngineOptions options = small_engine();
  options.attention = GetParam();
  Engine engine(kLlamaGroup4, options);
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request = request_of(i, prompts[i], 12);
    request.ignore_eos = false;
    request.key = kKey;
    if (i % 2 == 1) request.samples = {8, 9};
    engine.submit(request);
  }
  const auto mixed = tokens_of(run_to_end(engine));
  for (size_t i = 0; i < prompts.size(); i += 2) EXPECT_EQ(mixed[i], dense[i]) << "sequence " << i;
  if (GetParam().score_stage != kernels::ScoreStage::kExact) {
    EXPECT_NE(std::vector({mixed[1], mixed[3], mixed[5]}), std::vector({dense[1], dense[3], dense[5]}));
  }
}

TEST(Engine, SequencesOfOneBatchFollowTheirOwnSchedules) {
  const std::vector<std::vector<int32_t>> schedules{{1, 9}, {9, 1}, {4, 4}};
  const std::vector<int32_t> prompt = random_prompt(1, 30);
  Engine engine(kLlamaGroup4, small_engine());
  std::vector<std::vector<int32_t>> alone;
  for (const auto& samples : schedules) {
    alone.push_back(
        tokens_of(generate(engine, {prompt}, {.samples = samples, .key = kKey, .max_new_tokens = 15})).at(0));
  }
  for (size_t i = 0; i < schedules.size(); ++i) {
    GenerationRequest request = request_of(i, prompt, 15);
    request.ignore_eos = false;
    request.samples = schedules[i];
    request.key = kKey;
    engine.submit(request);
  }
  EXPECT_EQ(tokens_of(run_to_end(engine)), alone);
  EXPECT_NE(alone[0], alone[1]);
}

TEST(Engine, OtherSeedsAndQuestionsGiveOtherDraws) {
  Engine engine(kLlamaGroup4, small_engine());
  const std::vector<int32_t> prompt = random_prompt(2, 20);
  const auto tokens = [&](DrawKey key, uint32_t question) {
    GenerationRequest request = request_of(0, prompt, 16);
    request.key = key;
    request.question = question;
    request.sampling = {.temperature = 1};
    engine.submit(request);
    return run_to_end(engine).at(0).tokens;
  };
  const auto first = tokens({1, 2}, 3);
  EXPECT_EQ(tokens({1, 2}, 3), first);
  EXPECT_NE(tokens({2, 2}, 3), first);
  EXPECT_NE(tokens({1, 3}, 3), first);
  EXPECT_NE(tokens({1, 2}, 4), first);
}

// --- Continuous batching

TEST(Engine, RefillsSlotsAsSequencesFinish) {
  EngineOptions options = small_engine();
  options.max_sequences = 2;
  Engine engine(kLlamaGroup4, options);
  // The second request outlives three others that take turns in the other slot; with more slots 2 and 3 would
  // end first.
  const std::vector<int32_t> new_tokens{4, 9, 2, 2};
  for (size_t i = 0; i < new_tokens.size(); ++i)
    engine.submit(request_of(i, random_prompt(i, 4), new_tokens[i]));
  EXPECT_EQ(engine.pending(), 4);
  std::vector<uint64_t> order;
  while (engine.pending() > 0) {
    for (const GenerationResult& result : engine.step()) {
      order.push_back(result.id);
      EXPECT_THAT(result.tokens, SizeIs(new_tokens[result.id]));
      EXPECT_EQ(result.finish, Finish::kLength);
      EXPECT_EQ(result.prompt_tokens, 4);
    }
  }
  EXPECT_THAT(order, ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(engine.step(), IsEmpty());
}

TEST(Engine, AFinishedSequenceLeavesItsPagesToTheNext) {
  EngineOptions options = small_engine();
  options.cache_tokens = 32;  // one request at a time
  Engine engine(kLlamaGroup4, options);
  for (uint64_t i = 0; i < 4; ++i) engine.submit(request_of(i, random_prompt(i, 20), 12));
  EXPECT_THAT(run_to_end(engine), SizeIs(4));
}

TEST(Engine, CountsTokensOfBothPhases) {
  Engine engine(kLlamaGroup4, small_engine());
  for (uint64_t i = 0; i < 3; ++i) engine.submit(request_of(i, random_prompt(i, 10), 6));
  run_to_end(engine);
  EXPECT_EQ(engine.counters().prefill_tokens, 30);
  EXPECT_EQ(engine.counters().decode_tokens, 15);
  EXPECT_GT(engine.counters().prefill_seconds, 0);
  EXPECT_GT(engine.counters().decode_seconds, 0);
}

TEST(Engine, CancelDropsQueuedAndRunningRequestsAndFreesTheirPages) {
  EngineOptions options = small_engine();
  options.max_sequences = 1;
  options.cache_tokens = 64;
  Engine engine(kLlamaGroup4, options);
  for (uint64_t i = 0; i < 3; ++i) engine.submit(request_of(i, random_prompt(i, 40), 24));
  (void)engine.step();
  EXPECT_TRUE(engine.cancel(0));   // running, holds the whole cache
  EXPECT_TRUE(engine.cancel(1));   // queued
  EXPECT_FALSE(engine.cancel(1));  // gone
  EXPECT_EQ(engine.pending(), 1);
  const std::vector<GenerationResult> results = run_to_end(engine);
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].id, 2u);
}

TEST(Engine, TakesPromptsForCachedWhenPrefillIsSkipped) {
  EngineOptions options = small_engine();
  options.skip_prefill = true;
  options.max_sequences = 2;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    options.dtype = dtype;
    Engine engine(kLlamaGroup4, options);
    for (uint64_t i = 0; i < 3; ++i) engine.submit(request_of(i, random_prompt(i, 1 + 30 * i), 6));
    int steps = 0;
    for (; engine.pending() > 0; ++steps) (void)engine.step();
    EXPECT_EQ(steps, 2 * 6);
    EXPECT_EQ(engine.counters().prefill_tokens, 0);
    EXPECT_EQ(engine.counters().decode_tokens, 3 * 6);
  }
}

// --- The end of a sequence

TEST(Engine, EndsAtAnEosTokenUnlessToldNotTo) {
  Engine engine(kLlamaGroup4, small_engine());
  // A prompt whose greedy continuation has an eos token, found among a few.
  for (uint32_t seed = 0; seed < 200; ++seed) {
    GenerationRequest request = request_of(0, random_prompt(seed, 6), 30);
    engine.submit(request);
    const std::vector<int32_t> through = run_to_end(engine).at(0).tokens;
    EXPECT_THAT(through, SizeIs(30));
    const auto eos = std::ranges::find(through, 1);
    if (eos == through.end()) continue;
    request.ignore_eos = false;
    engine.submit(request);
    const GenerationResult result = run_to_end(engine).at(0);
    EXPECT_EQ(result.finish, Finish::kEos);
    EXPECT_EQ(result.tokens, std::vector<int32_t>(through.begin(), eos + 1));
    return;
  }
  FAIL() << "no prompt leads to an eos token; the test proves nothing";
}

TEST(Engine, AsksStopAfterEachToken) {
  Engine engine(kLlamaGroup4, small_engine());
  GenerationRequest request = request_of(0, random_prompt(0, 5), 30);
  std::vector<size_t> asked;
  request.stop = [&](std::span<const int32_t> output) {
    asked.push_back(output.size());
    return output.size() == 4;
  };
  engine.submit(request);
  const GenerationResult result = run_to_end(engine).at(0);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_THAT(result.tokens, SizeIs(4));
  EXPECT_THAT(asked, ElementsAre(1, 2, 3, 4));
}

// --- What layers have executed

TEST(Execution, JointReadsTheRowsOfItsSamplesInEveryLayerOfPromptAndReply) {
  for (const auto prefill : {kernels::Prefill::kSampled, kernels::Prefill::kDense}) {
    EngineOptions options = small_engine();
    options.attention = {.estimator = Estimator::kJoint, .prefill = prefill};
    options.count_execution = true;
    options.max_sequences = 2;
    Engine engine(kLlamaGroup4, options);
    const auto prompts = ragged_prompts(3);
    const auto replies = generate(engine, prompts, {.samples = {2, kExactLayer}, .key = kKey});
    int64_t prompt_tokens = 0, reply_tokens = 0;  // of the reply those that are computed again
    for (size_t i = 0; i < prompts.size(); ++i) {
      prompt_tokens += static_cast<int64_t>(prompts[i].size());
      reply_tokens += static_cast<int64_t>(replies[i].tokens.size()) - 1;
    }
    const bool sampled = prefill == kernels::Prefill::kSampled;
    const std::vector<LayerExecution> layers = engine.execution();
    ASSERT_THAT(layers, SizeIs(2));
    EXPECT_EQ(layers[0].sampled_tokens, reply_tokens + (sampled ? prompt_tokens : 0));
    EXPECT_EQ(layers[0].exact_tokens, sampled ? 0 : prompt_tokens);
    EXPECT_EQ(layers[0].samples, 2 * layers[0].sampled_tokens);
    ASSERT_GT(layers[0].sampled_tokens, 0);
    EXPECT_EQ(layers[0].rows, layers[0].row_limit);
    EXPECT_LE(layers[0].row_limit, 2 * 4 * engine.config().num_kv_heads * layers[0].sampled_tokens);
    EXPECT_EQ(layers[1].sampled_tokens, 0);
    EXPECT_EQ(layers[1].rows, 0);
    EXPECT_EQ(layers[1].exact_tokens, 3 + reply_tokens) << "the last layer computes output rows only";
  }
}

TEST(Execution, IsNotCountedUnlessAskedFor) {
  Engine engine(kLlamaGroup4, small_engine());
  generate(engine, ragged_prompts(1), {.samples = {2, 3}});
  EXPECT_THAT(engine.execution(), IsEmpty());
}

}  // namespace
}  // namespace allot::model
