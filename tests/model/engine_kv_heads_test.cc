// Schedules that give the KV heads of a layer budgets of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "episode/samples.h"
#include "model/engine.h"
#include "tests/kernels/methods.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/reference_decoder.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::Estimator;
using ::testing::ThrowsMessage;

TEST(Engine, ABudgetForEachKvHeadGivesItsQueryHeadsTheDrawsOfTheReference) {
  for (const Estimator estimator : {Estimator::kSys, Estimator::kIid, Estimator::kTopk}) {
    EngineOptions options = small_engine();
    options.attention.estimator = estimator;
    options.prefill_chunk_tokens = 7;
    Engine engine(kLlamaGroup4, options);
    ASSERT_EQ(engine.config().num_kv_heads, 2);
    const std::vector<int32_t> ids = random_prompt(5, 24);
    for (const std::vector<int32_t>& samples :
         {std::vector<int32_t>{6, 1, 2, 2}, {6, 6, 1, 9}, {kExactLayer, 2, 0, kExactLayer}}) {
      const std::vector<float> logits = engine.logits(ids, samples, kKey, 9);
      const auto expected =
          ReferenceDecoder(kLlamaGroup4)
              .logits(ids, {.estimator = estimator, .samples = samples, .key = kKey, .question = 9});
      for (size_t t = 0; t < ids.size(); ++t)
        for (size_t i = 0; i < expected[t].size(); ++i)
          ASSERT_NEAR(logits[t * expected[t].size() + i], expected[t][i], 2e-4)
              << name(estimator) << ", position " << t << ", token " << i;
    }
  }
}

TEST(Engine, EqualBudgetsOfKvHeadsAreTheLayers) {
  for (const kernels::AttentionMethod& method : kernels::testing::every_method()) {
    if (method.estimator == Estimator::kPooled) continue;
    EngineOptions options = small_engine();
    options.attention = method;
    Engine engine(kLlamaGroup4, options);
    const std::vector<int32_t> ids = random_prompt(4, 30), layers{8, 16}, heads{8, 8, 16, 16};
    EXPECT_EQ(engine.logits(ids, heads, kKey, 1), engine.logits(ids, layers, kKey, 1))
        << kernels::describe(method);
  }
}

TEST(Engine, SequencesWithBudgetsForKvHeadsLeaveTheirBatchMatesAlone) {
  const std::vector<std::vector<int32_t>> schedules{{1, 9, 4, 2}, {9, 1}, {}, {9, 1, 4, 4}};
  EngineOptions options = small_engine();
  options.threads = 1;  // one launch for the whole batch
  Engine engine(kLlamaGroup4, options);
  // Tokens drawn at random tell small differences apart.
  const auto submit = [&](size_t number) {
    GenerationRequest request = request_of(number, random_prompt(1, 30), 40);
    request.ignore_eos = true;
    request.samples = schedules[number];
    request.key = kKey;
    request.sampling = {.temperature = 1};
    engine.submit(request);
  };
  std::vector<std::vector<int32_t>> alone;
  for (size_t number = 0; number < schedules.size(); ++number) {
    submit(number);
    alone.push_back(tokens_of(run_to_end(engine)).at(0));
  }
  for (size_t number = 0; number < schedules.size(); ++number) submit(number);
  EXPECT_EQ(tokens_of(run_to_end(engine)), alone);
  EXPECT_NE(alone[0], alone[3]);
}

TEST(Engine, RefusesBudgetsOfKvHeadsWhereHeadsChooseTogetherOrLayersAreCounted) {
  const std::vector<int32_t> ids = random_prompt(4, 10), heads{4, 1, 4, 4};
  EngineOptions options = small_engine();
  options.attention.estimator = Estimator::kPooled;
  EXPECT_THAT([&] { (void)Engine(kLlamaGroup4, options).logits(ids, heads, kKey, 1); },
              ThrowsMessage<InvalidArgument>(Names("pooled", "KV heads")));
  options = small_engine();
  options.count_execution = true;
  EXPECT_THAT([&] { (void)Engine(kLlamaGroup4, options).logits(ids, heads, kKey, 1); },
              ThrowsMessage<InvalidArgument>(Names("counted", "KV head")));
  Engine engine(kLlamaGroup4, small_engine());
  EXPECT_THAT(
      [&] {
        (void)engine.logits(ids, std::vector<int32_t>{4, 1, 4}, kKey, 1);
      },
      ThrowsMessage<InvalidArgument>(Names(3, 2, "KV heads")));
  const FidelityText text{.ids = ids, .prompt_tokens = 4};
  const FidelityPair pair{.text = 0, .samples = heads, .attention = small_engine().attention};
  EXPECT_THAT(
      [&] {
        (void)engine.fidelity({&text, 1}, {&pair, 1}, {});
      },
      ThrowsMessage<InvalidArgument>(Names("each layer")));
}

}  // namespace
}  // namespace allot::model
