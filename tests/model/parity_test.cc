// The engine against Hugging Face transformers on the checkpoints of tests/data/parity (made by
// make_parity_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "model/engine.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/golden.h"

namespace allot::model {
namespace {

using kernels::DType;

constexpr int32_t kNewTokens = 64;

class Parity : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path directory() const { return kCheckpoints / GetParam(); }
  Engine engine(DType dtype, EngineOptions options = {}) const {
    options.dtype = dtype;
    options.cache_tokens = 4096;
    return Engine(directory(), options);
  }
  const Golden golden = read_golden(directory());
};

TEST_P(Parity, Float32LogitsAgreeWithin1e4) {
  Engine engine = this->engine(DType::kFloat32);
  EXPECT_LT(largest_difference(engine.logits(golden.ids, {}, {}, 0), golden.logits), 1e-4);
}

TEST_P(Parity, ChunkedLogitsAgreeToo) {
  EngineOptions options;
  options.prefill_chunk_tokens = 37;
  options.page_size = 5;
  Engine engine = this->engine(DType::kFloat32, options);
  EXPECT_LT(largest_difference(engine.logits(golden.ids, {}, {}, 0), golden.logits), 1e-4);
}

// Both are roundings of the float32 model; ours may not be twice as far from it as transformers'.
TEST_P(Parity, BFloat16LogitsAreAsCloseToFloat32AsThoseOfTransformers) {
  Engine engine = this->engine(DType::kBFloat16);
  const std::vector<float> logits = engine.logits(golden.ids, {}, {}, 0);
  const double theirs = root_mean_square_difference(golden.logits_bfloat16, golden.logits);
  EXPECT_GT(theirs, 0);
  EXPECT_LT(root_mean_square_difference(logits, golden.logits), 2 * theirs);
}

TEST_P(Parity, GreedyTokensOfARaggedBatchAreEqual) {
  Engine engine = this->engine(DType::kFloat32);
  EXPECT_EQ(tokens_of(generate(engine, golden.prompts, {.max_new_tokens = kNewTokens})), golden.greedy);
}

TEST_P(Parity, GreedyTokensOneAtATimeAreEqual) {
  Engine engine = this->engine(DType::kFloat32);
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    EXPECT_EQ(tokens_of(generate(engine, {golden.prompts[i]}, {.max_new_tokens = kNewTokens})).at(0),
              golden.greedy[i]);
  }
}

TEST_P(Parity, GreedyTokensUnderARepetitionPenaltyAreEqual) {
  Engine engine = this->engine(DType::kFloat32);
  EXPECT_EQ(tokens_of(generate(engine, golden.prompts,
                               {.sampling = {.repetition_penalty = 1.3}, .max_new_tokens = kNewTokens})),
            golden.penalised);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, Parity,
                         testing::Values("llama_group4", "llama_tied", "llama_rope_head24",
                                         "llama_bias_sharded", "qwen2_group7", "qwen3_group4_tied",
                                         "qwen3_rope_bias", "mistral_group7", "mistral_window_sharded",
                                         "llama_head64", "qwen2_head64_group7", "qwen3_head128",
                                         "mistral_head64_group1"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

}  // namespace
}  // namespace allot::model
