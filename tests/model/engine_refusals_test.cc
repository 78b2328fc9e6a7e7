// What the engine refuses before it runs anything, and what it is made of: options, random weights,
// checkpoints with faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "model/engine.h"
#include "model/weights.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;
using kernels::Estimator;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

// --- Refusals

class EngineRefuses : public testing::Test {
 protected:
  template <class Error = InvalidArgument>
  void expect(const GenerationRequest& request, const NamesMatcher& names) {
    EXPECT_THAT([&] { engine.submit(request); }, ThrowsMessage<Error>(names));
    EXPECT_EQ(engine.pending(), 0);
  }
  static EngineOptions options() {
    EngineOptions options = small_engine();
    options.cache_tokens = 320;
    options.attention.estimator = Estimator::kFlash;
    options.attention.tile = 16;
    return options;
  }
  Engine engine{kLlamaGroup4, options()};
};

TEST_F(EngineRefuses, PromptsItCannotRun) {
  expect(request_of(0, {}, 4), Names("prompt", "empty"));
  expect(request_of(0, {5, 96}, 4), Names("token id", 96, 1, 0, 95));
  expect(request_of(0, {-1}, 4), Names("token id", -1, 0));
  expect(request_of(0, {5}, 0), Names("max_new_tokens", 0));
  expect(request_of(0, random_prompt(0, 500), 13), Names(513, 512, "positions"));
  expect(request_of(0, random_prompt(0, 300), 21), Names(321, 320, "KV cache"));
}

TEST_F(EngineRefuses, SchedulesOfAnotherModelOrEstimator) {
  GenerationRequest request = request_of(0, random_prompt(0, 30), 10);
  request.samples = {4};
  expect(request, Names("schedule", 1, 2));
  request.samples = {4, -2};
  expect(request, Names("layer 1", -2));
  request.samples = {4, 2};
  expect(request, Names("layer 1", 2, "flash", 3));
  request.samples = {3, 0};
  EXPECT_NO_THROW(engine.submit(request));
  EXPECT_THAT(run_to_end(engine), SizeIs(1));
}

TEST_F(EngineRefuses, SamplingParametersOutOfRange) {
  GenerationRequest request = request_of(0, {3}, 4);
  request.sampling.top_p = 2;
  expect(request, Names("top_p", 2));
}

TEST_F(EngineRefuses, LogitsThatRequestsInFlightLeaveNoRoomFor) {
  engine.submit(request_of(0, random_prompt(0, 200), 50));
  (void)engine.step();
  const std::vector<int32_t> ids = random_prompt(1, 100);
  EXPECT_THAT([&] { engine.logits(ids, {}, kKey, 0); },
              ThrowsMessage<InvalidArgument>(Names("pages", 7, "KV cache", 4)));
  run_to_end(engine);
  EXPECT_THAT(engine.logits(ids, {}, kKey, 0), SizeIs(100 * 96));
  EXPECT_THAT(engine.logits(ids, {}, kKey, 0), SizeIs(100 * 96));  // the first call gave its pages back
}

TEST(EngineOptions, AreCheckedAllAtOnce) {
  EngineOptions options;
  options.page_size = 0;
  options.threads = -2;
  EXPECT_THAT([&] { Engine(kLlamaGroup4, options); },
              ThrowsMessage<InvalidArgument>(Names("page_size", 0, "threads", -2)));
}

// Before the checkpoint is read: a large one takes minutes.
TEST(EngineOptions, WithFloat16AreUnsupportedOnTheCpu) {
  EXPECT_THAT([&] { Engine("no-such-directory", small_engine(DType::kFloat16)); },
              ThrowsMessage<Unsupported>(Names("float16", "bfloat16", "float32")));
}

TEST(EngineOptions, WithWeightsOfEightBitsAreUnsupportedOnTheCpu) {
  for (const WeightStorage weights : {WeightStorage::kFp8, WeightStorage::kFp8AndLogits}) {
    EngineOptions options = small_engine();
    options.weights = weights;
    EXPECT_THAT([&] { Engine("no-such-directory", options); },
                ThrowsMessage<Unsupported>(Names(name(weights), "cpu", "dtype")));
  }
}

TEST(EngineOptions, WithSplitKeysAreUnsupportedOnTheCpu) {
  for (const kernels::KeyFormat keys : {kernels::KeyFormat::kSplit, kernels::KeyFormat::kHighPlane}) {
    EngineOptions options = small_engine();
    options.keys = keys;
    EXPECT_THAT([&] { Engine("no-such-directory", options); },
                ThrowsMessage<Unsupported>(Names(kernels::name(keys), "CUDA", "cpu", "16-bit")));
  }
}

TEST(EngineOptions, NameTheDeviceInFull) {
  EXPECT_EQ(Engine(kLlamaGroup4, small_engine()).options().device, "cpu");
  EngineOptions options = small_engine();
  options.device = "tpu";
  EXPECT_THAT([&] { Engine(kLlamaGroup4, options); },
              ThrowsMessage<InvalidArgument>(Names("tpu", "unknown")));
}

#ifndef ALLOT_WITH_CUDA
TEST(EngineOptions, WithACudaDeviceAreUnsupportedInABuildWithoutCuda) {
  EngineOptions options = small_engine(DType::kFloat16);
  options.device = "cuda";
  EXPECT_THAT([&] { Engine(kLlamaGroup4, options); }, ThrowsMessage<Unsupported>(Names("cuda:0", "CUDA")));
}
#endif

TEST(EngineOptions, SizeTheCacheForEverySlotByDefault) {
  EngineOptions options;
  options.max_sequences = 3;
  Engine engine(kLlamaGroup4, options);
  EXPECT_EQ(engine.options().cache_tokens, 3 * 512);
  EXPECT_GE(engine.options().threads, 1);
}

TEST(Engine, AnAdapterOfRandomWeightsIsRefused) {
  EngineOptions options;
  options.random_weights = 7;
  options.adapter = kAdapters / "plain";
  EXPECT_THAT(
      [&] { Engine(kCheckpoints / "llama_head64", options); },
      testing::ThrowsMessage<InvalidArgument>(Names("adapter", kAdapters / "plain", "random_weights", 7)));
}

// --- Random weights

// A directory with a model's config.json alone.
class ConfigOnly : public testing::Test {
 protected:
  void take_config_of(const std::string& model) {
    std::filesystem::copy(kCheckpoints / model / "config.json", directory.path(),
                          std::filesystem::copy_options::overwrite_existing);
  }
  std::vector<float> logits(DType dtype, std::optional<uint64_t> seed, int threads = 2) {
    EngineOptions options = small_engine(dtype);
    options.random_weights = seed;
    options.threads = threads;
    Engine engine(directory.path(), options);
    return engine.logits(random_prompt(1, 9), {}, kKey, 0);
  }

  const TemporaryDirectory directory;
};

TEST_F(ConfigOnly, RandomWeightsRunAsACheckpointOfTheSameNumbersDoes) {
  for (const char* model : {"llama_tied", "llama_bias_sharded", "qwen2_group7", "qwen3_rope_bias"}) {
    take_config_of(model);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::vector<float> random = logits(dtype, 7);
      write_random_checkpoint(directory.path(), read_model_config(directory.path()), 7);
      EXPECT_EQ(random, logits(dtype, std::nullopt)) << model;
      std::filesystem::remove(directory.path() / "model.safetensors");
      EXPECT_EQ(random, logits(dtype, 7, /*threads=*/1)) << model;
      EXPECT_NE(random, logits(dtype, 8)) << model;
    }
  }
}

TEST_F(ConfigOnly, WithoutASeedSaysThatThereAreNoWeights) {
  take_config_of("llama_tied");
  EXPECT_THAT([&] { (void)logits(DType::kFloat32, std::nullopt); },
              ThrowsMessage<NotFound>(Names("model.safetensors", "model.safetensors.index.json")));
}

TEST_F(ConfigOnly, ThatNeedsMoreMemoryThanIsFreeIsRefusedWithBothNumbers) {
  take_config_of("llama_tied");
  std::string config = read_file(directory.path() / "config.json");
  config.replace(config.find("\"num_hidden_layers\": 3"), 22, "\"num_hidden_layers\": 2000");
  config.replace(config.find("\"hidden_size\": 32"), 17, "\"hidden_size\": 65536");
  write_file_atomically(directory.path() / "config.json", config);
  const int64_t needed = weight_bytes(read_model_config(directory.path()), DType::kBFloat16);
  EXPECT_THAT([&] { (void)logits(DType::kBFloat16, 1); },
              ThrowsMessage<Error>(Names(needed, "bfloat16", "free")));
}

// --- Broken checkpoints

TEST(BrokenCheckpoint, WithATensorOfAnotherShapeIsUnsupported) {
  const CopiedCheckpoint model(kLlamaGroup4);
  model.replace("config.json", "\"intermediate_size\": 72", "\"intermediate_size\": 80");
  EXPECT_THAT(
      [&] { Engine(model.path(), small_engine()); },
      ThrowsMessage<Unsupported>(Names("model.layers.0.mlp.gate_proj.weight", "[72, 64]", "[80, 64]")));
}

TEST(BrokenCheckpoint, WithATensorOfIntegersIsUnsupported) {
  const CopiedCheckpoint model(kLlamaGroup4);
  model.replace("model.safetensors", "\"BF16\"", "\"I16\" ");
  EXPECT_THAT([&] { Engine(model.path(), small_engine()); },
              ThrowsMessage<Unsupported>(Names("I16", "F32", "BF16", "F16")));
}

TEST(BrokenCheckpoint, WithoutATensorIsCorrupt) {
  const CopiedCheckpoint model(kLlamaGroup4);
  model.replace("model.safetensors", "model.norm.weight", "model.morn.weight");
  EXPECT_THAT([&] { Engine(model.path(), small_engine()); },
              ThrowsMessage<CorruptFile>(Names("model.norm.weight")));
}

TEST(BrokenCheckpoint, WithWeightsThatAreNotNumbersIsReportedByTheFirstStep) {
  const CopiedCheckpoint model(kLlamaGroup4);
  model.make_norm_nan();
  Engine engine(model.path(), small_engine());
  engine.submit(request_of(0, {3, 4}, 4));
  EXPECT_THAT([&] { (void)engine.step(); }, ThrowsMessage<Error>(Names("logit")));
}

}  // namespace
}  // namespace allot::model
