// The engine with weights of 8 bits against the one with 16. Skipped with a message where there is no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/engine.h"
#include "model/engine_divergence.h"
#include "model/weight_storage.h"
#include "tests/model/checkpoints.h"
#include "tests/model/cuda/engine_runs.h"
#include "tests/model/generate.h"
#include "tests/names.h"

namespace allot::model {
namespace {

class CudaFp8 : public CudaEngine {
 protected:
  void SetUp() override {
    CudaEngine::SetUp();
    if (!IsSkipped() && kernels::testing::gpu_limits().compute_capability < 89)
      GTEST_SKIP() << "products of 8 bits need compute capability 8.9";
  }
};

std::vector<float> logits_of(const std::filesystem::path& model, const std::vector<int32_t>& ids,
                             const EngineOptions& options) {
  return Engine(model, on_device(options)).logits(ids, {}, {}, 0);
}

// A trained model, whose distributions are sharp; its own rounding is what passes of other sizes make of it.
TEST_F(CudaFp8, DivergesFromSixteenBitsByMoreThanRoundingAndLittle) {
  Engine whole(kTinyGsm, on_device());
  FidelityText text{.key = kKey, .question = 0};
  for (int32_t i = 0; i < 300; ++i) text.ids.push_back((i * 31 + 7) % whole.config().vocab_size);
  const auto divergence = [&](const EngineOptions& options) {
    Engine engine(kTinyGsm, on_device(options));
    return engine_divergence(whole, engine, text, FidelityMode::kPrefill).divergence;
  };
  const double rounding = divergence({.prefill_chunk_tokens = 64});
  const double fp8 = divergence({.weights = WeightStorage::kFp8});
  const double with_logits = divergence({.weights = WeightStorage::kFp8AndLogits});
  RecordProperty("rounding", std::to_string(rounding));
  RecordProperty("fp8", std::to_string(fp8));
  RecordProperty("fp8_logits", std::to_string(with_logits));
  EXPECT_GT(fp8, 3 * rounding);
  EXPECT_LT(fp8, 0.1);
  EXPECT_NE(with_logits, fp8);
  EXPECT_GT(with_logits, 3 * rounding);
  EXPECT_LT(with_logits, 0.2);
}

// Architectures (whose `down` keeps 16 bits: its rows are no multiple of 16) with biases, norms of heads and
// sub-norms; the distance from 16 bits against that of other weights.
TEST_F(CudaFp8, LogitsOfEveryArchitectureStayCloseToThoseOfSixteenBits) {
  for (const char* checkpoint : {"llama_head64", "qwen2_head64_group7", "qwen3_head128",
                                 "mistral_head64_group1", "bitnet_head64_group2"}) {
    SCOPED_TRACE(checkpoint);
    const std::filesystem::path model = kCheckpoints / checkpoint;
    const std::vector<int32_t> ids = random_prompt(3, 100);
    const std::vector<float> exact = logits_of(model, ids, {});
    const double spread = root_mean_square_difference(logits_of(model, random_prompt(4, 100), {}), exact);
    for (const WeightStorage storage : {WeightStorage::kFp8, WeightStorage::kFp8AndLogits}) {
      const double distance = root_mean_square_difference(logits_of(model, ids, {.weights = storage}), exact);
      RecordProperty(std::string(checkpoint) + "_" + std::string(name(storage)),
                     std::to_string(distance / spread));
      EXPECT_GT(distance, 0.002 * spread) << name(storage);
      EXPECT_LT(distance, 0.15 * spread) << name(storage);
    }
  }
}

// Decode steps of up to 16 rows keep activations in 16 bits, the prompt's pass does not: tokens are best but
// for what 8 bits make of logits.
TEST_F(CudaFp8, GreedyTokensAreBestByItsOwnLogitsAndByThoseOfSixteenBits) {
  const std::vector<int32_t> ids = random_prompt(3, 100);
  const double distance = root_mean_square_difference(
      logits_of(kDeviceModel, ids, {.weights = WeightStorage::kFp8}), logits_of(kDeviceModel, ids, {}));
  Engine fp8(kDeviceModel, on_device({.weights = WeightStorage::kFp8})), whole(kDeviceModel, on_device());
  for (const size_t count : {size_t{1}, size_t{6}, size_t{40}}) {
    const std::vector<GenerationRequest> requests = ragged_requests(count, 90, 30);
    const auto tokens = run(fp8, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_LT(gaps_of(fp8, requests[i], tokens[i]).largest, tie(distance)) << count << ", request " << i;
      EXPECT_LT(gaps_of(whole, requests[i], tokens[i]).largest, tie(distance)) << count << ", request " << i;
    }
  }
}

// The same passes have the same bits.
TEST_F(CudaFp8, TokensComeAgain) {
  Engine engine(kDeviceModel, on_device({.weights = WeightStorage::kFp8AndLogits}));
  std::vector<GenerationRequest> requests = ragged_requests(20, 90, 30);
  for (GenerationRequest& request : requests) {
    request.sampling = {.temperature = 1};
    request.samples = {7, 5};
  }
  const auto first = run(engine, requests);
  EXPECT_EQ(run(engine, requests), first);
}

// More states at once than a pass has rows.
TEST_F(CudaFp8, FidelityComparesWithItsOwnExactAttention) {
  Engine engine(kDeviceModel,
                on_device({.weights = WeightStorage::kFp8AndLogits, .prefill_chunk_tokens = 64}));
  const FidelityText text{.ids = random_prompt(5, 400), .key = kKey, .question = 5};
  const std::vector<FidelityPair> pairs{{.attention = engine.options().attention},
                                        {.samples = {7, 5}, .attention = engine.options().attention}};
  const std::vector<Fidelity> results = engine.fidelity({&text, 1}, pairs, {});
  EXPECT_EQ(results.at(0).divergence, 0);
  EXPECT_GT(results.at(1).divergence, 1e-4);
}

}  // namespace
}  // namespace allot::model
