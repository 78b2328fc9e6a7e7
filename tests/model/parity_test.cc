// The engine against Hugging Face transformers on the checkpoints of tests/data/parity (made by
// make_parity_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/bfloat16.h"
#include "model/engine.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/golden.h"

namespace allot::model {
namespace {

using kernels::DType;

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
  EXPECT_EQ(tokens_of(generate(engine, golden.prompts, {.max_new_tokens = golden.new_tokens})),
            golden.greedy);
}

TEST_P(Parity, GreedyTokensOneAtATimeAreEqual) {
  Engine engine = this->engine(DType::kFloat32);
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    EXPECT_EQ(tokens_of(generate(engine, {golden.prompts[i]}, {.max_new_tokens = golden.new_tokens})).at(0),
              golden.greedy[i]);
  }
}

TEST_P(Parity, GreedyTokensUnderARepetitionPenaltyAreEqual) {
  Engine engine = this->engine(DType::kFloat32);
  EXPECT_EQ(
      tokens_of(generate(engine, golden.prompts,
                         {.sampling = {.repetition_penalty = 1.3}, .max_new_tokens = golden.new_tokens})),
      golden.penalised);
}

// Adapters against the model that PEFT's merge_and_unload gives (make_adapter_golden.py).
class AdapterParity : public testing::TestWithParam<AdapterCase> {
 protected:
  AdapterParity() : file_(kAdapters / GetParam().name / "golden.safetensors") {}
  std::vector<float> logits(EngineOptions options) const {
    options.cache_tokens = 4096;
    Engine engine(kCheckpoints / GetParam().base, options);
    return engine.logits(values_of<int32_t>(find(file_, "ids")), {}, {}, 0);
  }
  std::filesystem::path adapter() const { return kAdapters / GetParam().name; }
  std::vector<float> golden() const { return values_of<float>(find(file_, "logits")); }

  const SafetensorsFile file_;
};

TEST_P(AdapterParity, Float32LogitsAgreeWithin1e4AndAreNotThoseOfTheBase) {
  EXPECT_LT(largest_difference(logits({.adapter = adapter(), .dtype = DType::kFloat32}), golden()), 1e-4);
  EXPECT_GT(largest_difference(logits({.dtype = DType::kFloat32}), golden()), 0.1);
}

TEST_P(AdapterParity, BFloat16LogitsAreAsCloseToFloat32AsThoseOfPeft) {
  std::vector<float> theirs;
  for (const uint16_t bits : values_of<uint16_t>(find(file_, "logits_bfloat16")))
    theirs.push_back(kernels::float_from_bfloat16(bits));
  const double distance = root_mean_square_difference(theirs, golden());
  EXPECT_GT(distance, 0);
  EXPECT_LT(root_mean_square_difference(logits({.adapter = adapter()}), golden()), 2 * distance);
}

TEST_P(AdapterParity, TheMergeDoesNotDependOnTheNumberOfThreads) {
  EXPECT_EQ(logits({.adapter = adapter(), .dtype = DType::kFloat32, .threads = 1}),
            logits({.adapter = adapter(), .dtype = DType::kFloat32, .threads = 4}));
}

INSTANTIATE_TEST_SUITE_P(Adapters, AdapterParity, testing::ValuesIn(kAdapterCases),
                         [](const auto& adapter) { return std::string(adapter.param.name); });

INSTANTIATE_TEST_SUITE_P(Checkpoints, Parity,
                         testing::Values("llama_group4", "llama_tied", "llama_rope_head24",
                                         "llama_bias_sharded", "qwen2_group7", "qwen3_group4_tied",
                                         "qwen3_rope_bias", "mistral_group7", "mistral_window_sharded",
                                         "llama_head64", "qwen2_head64_group7", "qwen3_head128",
                                         "mistral_head64_group1", "bitnet_head64_group2", "bitnet_bias",
                                         "bitnet_online", "bitnet_packed", "bitnet_bitlinear"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

}  // namespace
}  // namespace allot::model
