// How many bytes weights take, stored in each way.
#include "model/weight_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/weights_source.h"
#include "tests/message_of.h"
#include "tests/model/checkpoints.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;

// Numbers of Llama 3.1 8B.
ModelConfig of_8b() {
  ModelConfig config = read_model_config(kCheckpoints / "llama_head64");
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_q_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.vocab_size = 128256;
  config.attention_bias = config.mlp_bias = config.attention_output_bias = config.tie_word_embeddings = false;
  return config;
}
constexpr int64_t kLayerWeights = 32 * int64_t{4096} * (6144 + 4096 + 3 * 14336);
constexpr int64_t kLayerChannels = 32 * int64_t{6144 + 4096 + 28672 + 4096};
constexpr int64_t kHeadWeights = int64_t{128256} * 4096;

TEST(WeightStorage, OfEightBitsTakesAByteAWeightAndAScaleAChannel) {
  const ModelConfig config = of_8b();
  const int64_t norms = 65 * 4096;
  const auto stored = [&](WeightStorage storage) {
    return stored_weight_bytes(config, DType::kBFloat16, storage);
  };
  EXPECT_EQ(stored(WeightStorage::kDtype), 2 * (kLayerWeights + 2 * kHeadWeights + norms));
  EXPECT_EQ(stored(WeightStorage::kDtype), weight_bytes(config, DType::kBFloat16));
  const int64_t fp8 = kLayerWeights + 4 * kLayerChannels + 2 * (2 * kHeadWeights + norms);
  EXPECT_EQ(stored(WeightStorage::kFp8), fp8);
  EXPECT_EQ(stored(WeightStorage::kFp8AndLogits), fp8 - kHeadWeights + 4 * 128256);
}

TEST(WeightStorage, OfATiedEmbeddingKeepsItsRowsBesideTheQuantisedOnes) {
  ModelConfig config = of_8b();
  config.tie_word_embeddings = true;
  const int64_t fp8 = stored_weight_bytes(config, DType::kBFloat16, WeightStorage::kFp8);
  EXPECT_EQ(stored_weight_bytes(config, DType::kBFloat16, WeightStorage::kFp8AndLogits),
            fp8 + kHeadWeights + 4 * 128256);
}

TEST(WeightStorage, AStepReadsTheProductsWeights) {
  const ModelConfig config = of_8b();
  const auto read = [&](WeightStorage storage) { return step_weight_bytes(config, 2, storage); };
  EXPECT_EQ(read(WeightStorage::kDtype), 2 * (kLayerWeights + kHeadWeights));
  EXPECT_EQ(read(WeightStorage::kFp8), kLayerWeights + 4 * kLayerChannels + 2 * kHeadWeights);
  EXPECT_EQ(read(WeightStorage::kFp8AndLogits),
            kLayerWeights + 4 * kLayerChannels + kHeadWeights + 4 * 128256);
}

TEST(WeightStorage, RowsThatAreNoMultipleOf16StayWide) {
  ModelConfig config = of_8b();
  const int64_t before = step_weight_bytes(config, 2, WeightStorage::kFp8);
  config.intermediate_size = 14344;  // gate_up has 16 rows more, down 8 columns more and two bytes a weight
  EXPECT_EQ(step_weight_bytes(config, 2, WeightStorage::kFp8) - before,
            32 * (16 * int64_t{4096 + 4} + 4096 * (2 * int64_t{14344} - 14336 - 4)));
}

TEST(WeightStorage, NamesComeBackAndOthersAreRefused) {
  for (const WeightStorageName& one : kWeightStorages) {
    EXPECT_EQ(parse_weight_storage(one.name), one.storage);
    EXPECT_EQ(name(one.storage), one.name);
  }
  EXPECT_THAT(message_of<InvalidArgument>([] { (void)parse_weight_storage("int4"); }),
              Names("int4", "dtype", "fp8", "fp8-logits"));
}

}  // namespace
}  // namespace allot::model
