// The engine against Hugging Face transformers on the checkpoints of tests/data/parity (made by
// make_parity_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "kernels/bfloat16.h"
#include "model/engine.h"
#include "model/safetensors.h"
#include "tests/model/generate.h"

namespace allot::model {
namespace {

using kernels::DType;

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<float> logits_bfloat16;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::vector<int32_t>> greedy;
  std::vector<std::vector<int32_t>> penalised;
};

const TensorView& find(const SafetensorsFile& file, const std::string& name) {
  return *std::ranges::find(file.tensors(), name, &TensorView::name);
}

template <class T>
std::vector<T> values_of(const TensorView& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Rows of generated tokens; -1 fills them up.
std::vector<std::vector<int32_t>> outputs_of(const TensorView& tensor) {
  const std::vector<int32_t> flat = values_of<int32_t>(tensor);
  std::vector<std::vector<int32_t>> rows;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    const auto begin = flat.begin() + i * tensor.shape[1];
    rows.emplace_back(begin, std::find(begin, begin + tensor.shape[1], -1));
  }
  return rows;
}

Golden read_golden(const std::filesystem::path& directory) {
  const SafetensorsFile file(directory / "golden.safetensors");
  Golden golden{.ids = values_of<int32_t>(find(file, "ids")),
                .logits = values_of<float>(find(file, "logits")),
                .logits_bfloat16 = {},
                .prompts = {},
                .greedy = outputs_of(find(file, "greedy")),
                .penalised = outputs_of(find(file, "penalised"))};
  for (uint16_t bits : values_of<uint16_t>(find(file, "logits_bfloat16"))) {
    golden.logits_bfloat16.push_back(kernels::float_from_bfloat16(bits));
  }
  const std::vector<int32_t> flat = values_of<int32_t>(find(file, "prompts"));
  const std::vector<int32_t> starts = values_of<int32_t>(find(file, "prompt_starts"));
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    golden.prompts.emplace_back(flat.begin() + starts[i], flat.begin() + starts[i + 1]);
  }
  return golden;
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max<double>(largest, std::abs(a[i] - b[i]));
  return largest;
}

double root_mean_square_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

constexpr int32_t kNewTokens = 64;

class Parity : public testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path directory() const {
    return std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/parity" / GetParam();
  }
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
                                         "qwen3_rope_bias", "mistral_group7", "mistral_window_sharded"),
                         [](const auto& checkpoint) { return std::string(checkpoint.param); });

}  // namespace
}  // namespace allot::model
