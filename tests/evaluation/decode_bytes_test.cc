#include "evaluation/decode_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "episode/samples.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::ThrowsMessage;

model::ModelConfig llama() {
  return model::read_model_config(std::filesystem::path(ALLOT_SOURCE_DIR) / "configs/shapes/llama-3.1-8b");
}

DecodeBytes under_samples(const DecodeShape& shape, int32_t samples) {
  return sampled_bytes(llama(), shape, policy::uniform_schedule(32, samples), kernels::BudgetUnit::kSamples);
}

// S2ANTA paper, section 3.5: "the Llama 8B weights contribute roughly 15 GB of traffic, while the KV cache
// for a batch of six 30k-token prompts contributes roughly 24 GB", and a kernel 1.5 times as fast makes the
// step 1.26 times as fast.
TEST(DecodeBytes, AreThoseOfThePapersExample) {
  const DecodeBytes bytes = exact_bytes(llama(), {.sequences = 6, .keys = 30'000});
  EXPECT_NEAR(static_cast<double>(bytes.weights), 15e9, 0.05e9);
  EXPECT_EQ(bytes.keys, int64_t{6} * 30'000 * 32 * 8 * 128 * 2);
  EXPECT_EQ(bytes.values, bytes.keys);
  EXPECT_NEAR(static_cast<double>(bytes.keys + bytes.values), 24e9, 0.5e9);
  EXPECT_NEAR(step_speedup(bytes, 1.5), 1.26, 0.005);
}

// Of the 8,030,261,248 parameters of Llama 3.1 8B a step reads all but the input embedding.
TEST(DecodeBytes, CountEveryWeightThatAStepReads) {
  const model::ModelConfig config = llama();
  const int64_t embedding = int64_t{config.vocab_size} * config.hidden_size;
  EXPECT_EQ(exact_bytes(config, {.keys = 1}).weights, 2 * (8'030'261'248 - embedding));
  model::ModelConfig tied = config;
  tied.tie_word_embeddings = true;
  EXPECT_EQ(exact_bytes(tied, {.keys = 1}).weights, 2 * (8'030'261'248 - embedding))
      << "the head is read all the same";
  model::ModelConfig more = config;
  more.attention_bias = more.attention_output_bias = more.mlp_bias = more.qk_norm = true;
  const int64_t biases = 32 * ((4096 + 2 * 1024) + 4096 + (2 * 14'336 + 4096) + 2 * 128);
  EXPECT_EQ(exact_bytes(more, {.keys = 1}).weights - exact_bytes(config, {.keys = 1}).weights, 2 * biases);
  more = config;
  more.sub_norms = true;
  EXPECT_EQ(exact_bytes(more, {.keys = 1}).weights - exact_bytes(config, {.keys = 1}).weights,
            2 * 32 * (4096 + 14'336));
}

TEST(DecodeBytes, SamplesReadAtMostAsManyValueRowsAsAGroupHasSamples) {
  const DecodeShape shape{.sequences = 3, .keys = 1024, .bytes_per_element = 4};
  const DecodeBytes exact = exact_bytes(llama(), shape), sampled = under_samples(shape, 8);
  EXPECT_EQ(sampled.weights, exact.weights);
  EXPECT_EQ(sampled.keys, exact.keys);
  EXPECT_EQ(sampled.values * 1024, exact.values * 32) << "four heads of 8";
  EXPECT_EQ(under_samples(shape, 256), exact);
  EXPECT_EQ(under_samples(shape, 257), exact) << "no more than there are";
}

TEST(DecodeBytes, OfAScheduleAreThoseOfEachLayerInItsUnit) {
  const DecodeShape shape{.keys = 1024};
  policy::Schedule schedule = policy::uniform_schedule(32, 8);
  const auto layer = [&] { return exact_bytes(llama(), shape).values / 32 / 1024; };
  schedule.samples[0] = kExactLayer;
  schedule.samples[1] = 2;
  EXPECT_EQ(sampled_bytes(llama(), shape, schedule, kernels::BudgetUnit::kSamples).values,
            layer() * (1024 + 4 * 2 + 30 * 4 * 8));
  EXPECT_EQ(sampled_bytes(llama(), shape, schedule, kernels::BudgetUnit::kRows).values,
            layer() * (1024 + 2 + 30 * 8));
}

// A layer of llama() has 8 KV heads of 128, and 4 query heads for each.
TEST(DecodeBytes, OfSplitKeysAreTheHighPlanesAndTheLowOnesOfRowsDrawn) {
  using kernels::CacheFormat;
  const auto keys_of = [](const policy::Schedule& schedule, CacheFormat format) {
    return sampled_bytes(llama(), {.sequences = 3, .keys = 1024, .key_format = format}, schedule,
                         kernels::BudgetUnit::kSamples)
        .keys;
  };
  const int64_t heads = 3 * 8, high = 128 + 4, low = 128;
  policy::Schedule schedule = policy::uniform_schedule(32, 8);
  EXPECT_EQ(keys_of(schedule, CacheFormat::kHighPlane), 32 * heads * 1024 * high);
  EXPECT_EQ(keys_of(schedule, CacheFormat::kSplit), 32 * heads * (1024 * high + 4 * 8 * low));
  schedule.samples[0] = kExactLayer;
  EXPECT_EQ(keys_of(schedule, CacheFormat::kSplit),
            heads * (31 * (1024 * high + 4 * 8 * low) + 1024 * (high + low)));
  const DecodeShape shape{.sequences = 3, .keys = 1024, .key_format = CacheFormat::kSplit};
  const DecodeBytes exact = exact_bytes(llama(), shape);
  EXPECT_EQ(exact.keys, 32 * heads * 1024 * (high + low)) << "exact scores need both planes";
  EXPECT_EQ(exact.values, 32 * heads * 1024 * 128 * 2) << "values have their 16 bits";
  EXPECT_EQ(under_samples(shape, 256), exact);
}

TEST(DecodeBytes, OfValuesOfEightBitsAreAByteAnElementAndAScaleARow) {
  using kernels::CacheFormat;
  const auto shape = [](CacheFormat keys, CacheFormat values) {
    return DecodeShape{.sequences = 3, .keys = 1024, .key_format = keys, .value_format = values};
  };
  const int64_t layers = 32, heads = 3 * 8;
  const DecodeShape int8 = shape(CacheFormat::kSplit, CacheFormat::kInt8);
  EXPECT_EQ(exact_bytes(llama(), int8).values, layers * heads * 1024 * (128 + 4));
  EXPECT_EQ(under_samples(int8, 8).values, layers * heads * 4 * 8 * (128 + 4));
  EXPECT_EQ(under_samples(int8, 8).keys, layers * heads * (1024 * (128 + 4) + 4 * 8 * 128));
  const DecodeShape fp8 = shape(CacheFormat::kFp8, CacheFormat::kFp8);
  const DecodeBytes half = exact_bytes(llama(), fp8), whole = exact_bytes(llama(), shape({}, {}));
  EXPECT_EQ(2 * half.keys, whole.keys) << "one scale for all";
  EXPECT_EQ(2 * half.values, whole.values);
  EXPECT_EQ(under_samples(fp8, 8).keys, half.keys);
}

TEST(DecodeBytes, OfWeightsOfEightBitsAreAByteAWeightOfALayerAndAScaleAChannel) {
  using model::WeightStorage;
  const auto weights = [](WeightStorage storage) {
    return exact_bytes(llama(), {.keys = 1, .weights = storage}).weights;
  };
  const int64_t of_layer = 4096 * int64_t{4096 + 2 * 1024} + 4096 * 4096 + 3 * 4096 * int64_t{14'336};
  const int64_t channels = (4096 + 2 * 1024) + 4096 + 2 * 14'336 + 4096, logits = 4096 * int64_t{128'256};
  EXPECT_EQ(weights(WeightStorage::kDtype) - weights(WeightStorage::kFp8), 32 * (of_layer - 4 * channels));
  EXPECT_EQ(weights(WeightStorage::kFp8) - weights(WeightStorage::kFp8AndLogits), logits - 4 * 128'256);
}

TEST(DecodeBytes, WhatIsNoShapeIsRefused) {
  EXPECT_THAT([] { exact_bytes(llama(), {.keys = 0}); }, ThrowsMessage<InvalidArgument>(Names("keys", 0)));
  EXPECT_THAT([] { exact_bytes(llama(), {.sequences = -1, .keys = 1}); },
              ThrowsMessage<InvalidArgument>(Names("sequences", -1)));
  EXPECT_THAT(
      [] {
        sampled_bytes(llama(), {.keys = 1}, policy::uniform_schedule(31, 8), kernels::BudgetUnit::kSamples);
      },
      ThrowsMessage<InvalidArgument>(Names(31, 32)));
  EXPECT_THAT([] { exact_bytes(llama(), {.sequences = 1 << 30, .keys = 1 << 30}); },
              ThrowsMessage<InvalidArgument>(Names("64 bits")));
}

}  // namespace
}  // namespace allot::evaluation
