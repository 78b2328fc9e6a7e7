#include "model/cuda/device_weights.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/temporary_directory.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"
#include "kernels/fp8.h"
#include "model/cuda/random_fill.h"
#include "model/weight_storage.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/model/checkpoints.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;
using ::testing::ThrowsMessage;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

TEST(DeviceMemoryCheck, NamesWhatIsNeededAndWhatIsFree) {
  EXPECT_NO_THROW(require_device_memory(100, 100, 200, DType::kBFloat16));
  EXPECT_THAT([] { require_device_memory(101, 100, 200, DType::kBFloat16); },
              ThrowsMessage<Error>(Names(101, "bfloat16", 100, 200, "processes")));
  EXPECT_THAT([] { require_device_memory(201, 100, 200, DType::kFloat16); },
              ThrowsMessage<Error>(Names(201, "float16", 100, 200, "more memory")));
  EXPECT_THAT([] { require_device_memory(101, 100, 200, DType::kBFloat16, WeightStorage::kFp8); },
              ThrowsMessage<Error>(Names(101, "bfloat16", "fp8", 100, 200)));
  EXPECT_THAT([] { require_device_memory(101, 100, 200, DType::kFloat32); },
              ThrowsMessage<Error>(Names(101, "float32", 100, 200, "bfloat16")));
}

class DeviceWeightsTest : public kernels::testing::CudaTest {};

std::vector<std::byte> download(const DeviceBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  if (!bytes.empty()) {
    check(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  return bytes;
}

// Compares each buffer with what the host makes of its tensors, and counts them.
class LoadedWeights {
 public:
  LoadedWeights(const WeightsSource& source, DType dtype) : source_(source), dtype_(dtype) {}

  // `buffer` holds the tensors of these names under one another, or nothing when there are none.
  void expect(const DeviceBuffer& buffer, const std::vector<std::string>& names) {
    std::vector<std::byte> expected;
    for (const std::string& name : names) {
      const WeightTensor tensor = source_.at(name);
      const size_t at = expected.size();
      expected.resize(at + tensor.count() * kernels::size_of(dtype_));
      write_elements(tensor, 0, tensor.count(), dtype_, expected.data() + at);
    }
    ASSERT_EQ(buffer.size(), static_cast<int64_t>(expected.size())) << testing::PrintToString(names);
    EXPECT_TRUE(download(buffer) == expected) << testing::PrintToString(names);
    tensors_ += names.size();
  }

  size_t tensors() const { return tensors_; }

 private:
  const WeightsSource& source_;
  DType dtype_;
  size_t tensors_ = 0;
};

// The device's weights against those that the host writes, tensor for tensor.
void expect_same_weights(const WeightsSource& source, const ModelConfig& config, DType dtype, int threads) {
  const DeviceWeights weights = load_device_weights(source, config, dtype, threads);
  LoadedWeights same(source, dtype);
  same.expect(weights.embedding, {"model.embed_tokens.weight"});
  ASSERT_EQ(weights.layers.size(), static_cast<size_t>(config.num_layers));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const DeviceLayerWeights& layer = weights.layers[i];
    const auto named = [&](std::initializer_list<const char*> parts, bool present = true) {
      std::vector<std::string> names;
      if (!present) return names;
      for (const char* part : parts) names.push_back("model.layers." + std::to_string(i) + "." + part);
      return names;
    };
    same.expect(layer.input_norm, named({"input_layernorm.weight"}));
    same.expect(layer.qkv.elements,
                named({"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}));
    same.expect(layer.qkv_bias,
                named({"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"},
                      config.attention_bias));
    same.expect(layer.q_norm, named({"self_attn.q_norm.weight"}, config.qk_norm));
    same.expect(layer.k_norm, named({"self_attn.k_norm.weight"}, config.qk_norm));
    same.expect(layer.attention_sub_norm, named({"self_attn.attn_sub_norm.weight"}, config.sub_norms));
    same.expect(layer.attention_output.elements, named({"self_attn.o_proj.weight"}));
    same.expect(layer.attention_output_bias, named({"self_attn.o_proj.bias"}, config.attention_output_bias));
    same.expect(layer.post_attention_norm, named({"post_attention_layernorm.weight"}));
    same.expect(layer.gate_up.elements, named({"mlp.gate_proj.weight", "mlp.up_proj.weight"}));
    same.expect(layer.gate_up_bias, named({"mlp.gate_proj.bias", "mlp.up_proj.bias"}, config.mlp_bias));
    same.expect(layer.mlp_sub_norm, named({"mlp.ffn_sub_norm.weight"}, config.sub_norms));
    same.expect(layer.down.elements, named({"mlp.down_proj.weight"}));
    same.expect(layer.down_bias, named({"mlp.down_proj.bias"}, config.mlp_bias));
  }
  same.expect(weights.final_norm, {"model.norm.weight"});
  const bool tied = config.tie_word_embeddings;
  same.expect(weights.output_head.elements,
              tied ? std::vector<std::string>{} : std::vector<std::string>{"lm_head.weight"});
  EXPECT_EQ(weights.head(), tied ? weights.embedding.data() : weights.output_head.elements.data());
  EXPECT_EQ(same.tensors(), decoder_tensor_shapes(config).size());
}

// Of a product, 8 bits where its rows have whole vectors of them, against what the host makes of the tensors
// of these names; counts the bytes.
class QuantizedWeights {
 public:
  explicit QuantizedWeights(const WeightsSource& source) : source_(source) {}

  void expect(const ProductWeights& product, const std::vector<std::string>& names) {
    std::vector<std::byte> wide;
    int64_t in_features = 0, count = 0;
    for (const std::string& name : names) {
      const WeightTensor tensor = source_.at(name);
      in_features = tensor.shape.back();
      wide.resize(static_cast<size_t>(count + tensor.count()) * 2);
      write_elements(tensor, 0, tensor.count(), DType::kBFloat16, wide.data() + 2 * count);
      count += tensor.count();
    }
    bytes_ += product.elements.size() + product.scales.size();
    if (in_features % 16 != 0) {
      EXPECT_TRUE(download(product.elements) == wide) << testing::PrintToString(names);
      EXPECT_EQ(product.scales.size(), 0) << testing::PrintToString(names);
      return;
    }
    ++quantized_;
    std::vector<uint8_t> bits(static_cast<size_t>(count));
    std::vector<float> scales(static_cast<size_t>(count / in_features));
    kernels::quantize_rows({.rows = count / in_features,
                            .width = static_cast<int32_t>(in_features),
                            .dtype = DType::kBFloat16,
                            .input = wide.data(),
                            .out = bits.data(),
                            .scales = scales.data()},
                           1);
    EXPECT_TRUE(same(download(product.elements), bits)) << testing::PrintToString(names);
    EXPECT_TRUE(same(download(product.scales), scales)) << testing::PrintToString(names);
  }
  // What is not quantised.
  void add(const DeviceBuffer& buffer) { bytes_ += buffer.size(); }

  int64_t bytes() const { return bytes_; }
  int64_t quantized() const { return quantized_; }  // products

 private:
  template <class X>
  static bool same(const std::vector<std::byte>& bytes, const std::vector<X>& values) {
    return bytes.size() == values.size() * sizeof(X) &&
           std::memcmp(bytes.data(), values.data(), bytes.size()) == 0;
  }

  const WeightsSource& source_;
  int64_t bytes_ = 0, quantized_ = 0;
};

void expect_quantized_weights(const WeightsSource& source, const ModelConfig& config, WeightStorage storage,
                              int threads) {
  const DeviceWeights weights =
      load_device_weights(source, config, DType::kBFloat16, threads, {.storage = storage});
  QuantizedWeights quantized(source);
  LoadedWeights whole(source, DType::kBFloat16);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const DeviceLayerWeights& layer = weights.layers[i];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    quantized.expect(layer.qkv,
                     {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"});
    quantized.expect(layer.attention_output, {attention + "o_proj.weight"});
    quantized.expect(layer.gate_up, {mlp + "gate_proj.weight", mlp + "up_proj.weight"});
    quantized.expect(layer.down, {mlp + "down_proj.weight"});
    whole.expect(layer.input_norm, {prefix + "input_layernorm.weight"});
    for (const DeviceBuffer* buffer :
         {&layer.input_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm, &layer.attention_sub_norm,
          &layer.attention_output_bias, &layer.post_attention_norm, &layer.gate_up_bias, &layer.mlp_sub_norm,
          &layer.down_bias}) {
      quantized.add(*buffer);
    }
  }
  whole.expect(weights.embedding, {"model.embed_tokens.weight"});
  quantized.add(weights.embedding);
  quantized.add(weights.final_norm);
  const bool tied = config.tie_word_embeddings;
  if (storage == WeightStorage::kFp8AndLogits) {
    quantized.expect(weights.output_head, {tied ? "model.embed_tokens.weight" : "lm_head.weight"});
    EXPECT_EQ(weights.head(), weights.output_head.elements.data());
  } else {
    EXPECT_EQ(weights.output_head.scales.size(), 0);
    quantized.add(weights.output_head.elements);
    EXPECT_EQ(weights.head(), tied ? weights.embedding.data() : weights.output_head.elements.data());
  }
  EXPECT_EQ(quantized.bytes(), stored_weight_bytes(config, DType::kBFloat16, storage));
  EXPECT_GE(quantized.quantized(), 3 * config.num_layers);  // some have rows of another width before `down`
}

TEST_F(DeviceWeightsTest, OfEightBitsAreThoseThatTheHostQuantises) {
  for (const std::filesystem::path& model :
       {kTinyGsm, kCheckpoints / "llama_head64", kCheckpoints / "qwen2_head64_group7",
        kCheckpoints / "llama_bias_sharded", kCheckpoints / "bitnet_head64_group2"}) {
    const ModelConfig config = read_model_config(model);
    for (const WeightStorage storage : {WeightStorage::kFp8, WeightStorage::kFp8AndLogits}) {
      SCOPED_TRACE(model.filename().string() + " as " + std::string(name(storage)));
      expect_quantized_weights(WeightsSource::checkpoint(model, config), config, storage, 4);
      expect_quantized_weights(WeightsSource::random(7, config), config, storage, 1);
    }
  }
}

// Rows of another length have no products of 8 bits: their weights keep the dtype.
TEST_F(DeviceWeightsTest, OfWidthsThatHaveNoProductsOfEightBitsKeepTheDtype) {
  ModelConfig config = read_model_config(kCheckpoints / "llama_head64");
  config.intermediate_size = 104;
  const WeightsSource source = WeightsSource::random(3, config);
  const DeviceWeights weights =
      load_device_weights(source, config, DType::kBFloat16, 1, {.storage = WeightStorage::kFp8});
  const DeviceLayerWeights& layer = weights.layers.at(0);
  EXPECT_EQ(layer.down.scales.size(), 0);
  EXPECT_EQ(layer.down.elements.size(), 2 * 104 * config.hidden_size);
  EXPECT_EQ(layer.gate_up.elements.size(), 2 * 104 * config.hidden_size);
  EXPECT_EQ(layer.gate_up.scales.size(), 2 * 104 * 4);
}

TEST_F(DeviceWeightsTest, OfEveryCheckpointAreThoseOfTheHost) {
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    if (!entry.is_directory()) continue;
    const ModelConfig config = read_model_config(entry.path());
    const WeightsSource source = WeightsSource::checkpoint(entry.path(), config);
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(entry.path().filename().string() + " as " + std::string(name(dtype)));
      expect_same_weights(source, config, dtype, 4);
    }
    ++checkpoints;
  }
  EXPECT_EQ(checkpoints, 18);
}

TEST_F(DeviceWeightsTest, OfASeedAreThoseOfTheHost) {
  for (const char* checkpoint : {"llama_tied", "qwen3_rope_bias", "llama_bias_sharded"}) {
    const ModelConfig config = read_model_config(kCheckpoints / checkpoint);
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(checkpoint) + " as " + std::string(name(dtype)));
      expect_same_weights(WeightsSource::random(7, config), config, dtype, 1);
    }
  }
}

// Tensors of several MiB pass through the same page-locked memory several times.
TEST_F(DeviceWeightsTest, LargerThanTheirStagingMemoryAreThoseOfTheHostForAnyNumberOfThreads) {
  ModelConfig config = read_model_config(kCheckpoints / "llama_group4");
  config.vocab_size = 6'000'001 / config.hidden_size;  // 24 MB as float32, of 4 MiB pieces
  const TemporaryDirectory directory;
  write_random_checkpoint(directory.path(), config, 11);
  const WeightsSource source = WeightsSource::checkpoint(directory.path(), config);
  for (const int threads : {1, 3, 64}) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::string(name(dtype)));
      expect_same_weights(source, config, dtype, threads);
    }
  }
}

TEST_F(DeviceWeightsTest, ThatDoNotFitAreRefusedBeforeAnyMemoryIsTaken) {
  ModelConfig config = read_model_config(kCheckpoints / "llama_tied");
  config.vocab_size = 1 << 30;
  config.hidden_size = 1 << 20;
  const WeightsSource source = WeightsSource::random(1, config);
  const std::string needed = std::to_string(weight_bytes(config, DType::kBFloat16));
  EXPECT_THAT([&] { load_device_weights(source, config, DType::kBFloat16, 1); },
              ThrowsMessage<Error>(Names(needed, "bfloat16", "free")));
}

TEST_F(DeviceWeightsTest, OfAnotherModelAreRefusedWithTheTensorsName) {
  ModelConfig config = read_model_config(kCheckpoints / "llama_group4");
  config.intermediate_size += 8;
  const WeightsSource source = WeightsSource::checkpoint(kCheckpoints / "llama_group4", config);
  EXPECT_THAT([&] { load_device_weights(source, config, DType::kBFloat16, 2); },
              ThrowsMessage<Unsupported>(Names("model.layers.0.mlp.gate_proj.weight")));
}

// The bytes of `element` as `dtype`.
void append(float element, DType dtype, std::vector<std::byte>& out) {
  const size_t at = out.size(), size = kernels::size_of(dtype);
  out.resize(at + size);
  const uint16_t narrow = dtype == DType::kBFloat16 ? kernels::bfloat16_from_float(element)
                                                    : kernels::float16_from_float(element);
  std::memcpy(out.data() + at, size == 4 ? static_cast<const void*>(&element) : &narrow, size);
}

TEST_F(DeviceWeightsTest, MadeAtRandomAreTheElementsOfAnyRangeAtAnyAddressAndNothingElseIsWritten) {
  constexpr int64_t kSpace = 4200;  // elements
  constexpr std::byte kUntouched{0xA5};
  const Stream stream;
  // A step so small that float16 has subnormal numbers, too.
  for (const RandomTensor& tensor : {random_tensor(0x123456789ABCDEF0u, "lm_head.weight", 0.02),
                                     random_tensor(3, "down", 1e-5), RandomTensor{.constant = 1.01f}}) {
    for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{8}, uint64_t{1003},
                                 (uint64_t{1} << 35) - 1501}) {  // where the block number outgrows 32 bits
      for (const int64_t count : {0, 1, 6, 7, 8, 9, 17, 2048, 4099}) {
        for (const int64_t at : {0, 1, 3, 4, 8}) {
          for (const DType dtype : kDTypes) {
            const int64_t size = kernels::size_of(dtype);
            const DeviceBuffer buffer(kSpace * size);
            check(cudaMemsetAsync(buffer.data(), static_cast<int>(kUntouched), buffer.size(), stream.get()),
                  "cudaMemsetAsync");
            fill_random_cuda(tensor, first, count, dtype, buffer.data() + at * size, stream.get());
            stream.synchronize();
            std::vector<std::byte> expected(at * size, kUntouched);
            for (int64_t i = 0; i < count; ++i) append(random_element(tensor, first + i), dtype, expected);
            expected.resize(kSpace * size, kUntouched);
            ASSERT_TRUE(download(buffer) == expected)
                << count << " elements from " << first << " on at " << at << " as " << name(dtype)
                << ", step " << tensor.step;
          }
        }
      }
    }
  }
}

// Every rank on this one device, one after the other.
TEST_F(DeviceWeightsTest, OfARankAreItsPartsOfTheHosts) {
  for (const bool random : {false, true}) {
    const std::filesystem::path directory =
        kCheckpoints / (random ? "llama_bias_sharded" : "qwen3_rope_bias");
    ModelConfig config = read_model_config(directory);
    if (random) config.intermediate_size = 54;
    const WeightsSource source =
        random ? WeightsSource::random(5, config) : WeightsSource::checkpoint(directory, config);
    for (int32_t rank = 0; rank < 3; ++rank) {
      const ModelSplit split{.rank = rank, .ranks = 3};
      const DeviceWeights weights =
          load_device_weights(source, config_of_rank(config, 3), DType::kBFloat16, 2, {.split = split});
      const auto expect = [&](const DeviceBuffer& buffer, const std::vector<std::string>& names) {
        std::vector<std::byte> expected;
        for (const std::string& name : names) {
          const WeightTensor part = part_of(source.at("model.layers.1." + name), split);
          const size_t at = expected.size();
          expected.resize(at + static_cast<size_t>(part.count()) * 2);
          write_elements(part, 0, part.count(), DType::kBFloat16, expected.data() + at);
        }
        EXPECT_TRUE(download(buffer) == expected)
            << names[0] << " of rank " << rank << (random ? ", random" : "");
      };
      const DeviceLayerWeights& layer = weights.layers[1];
      expect(layer.qkv.elements,
             {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"});
      expect(layer.qkv_bias, {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"});
      expect(layer.attention_output.elements, {"self_attn.o_proj.weight"});
      expect(layer.attention_output_bias, {"self_attn.o_proj.bias"});
      expect(layer.gate_up.elements, {"mlp.gate_proj.weight", "mlp.up_proj.weight"});
      expect(layer.down.elements, {"mlp.down_proj.weight"});
      if (config.mlp_bias) expect(layer.down_bias, {"mlp.down_proj.bias"});
      const VocabularyPart head = vocabulary_part(config.vocab_size, split);
      EXPECT_EQ(weights.output_head.elements.size(), int64_t{2} * head.count * config.hidden_size);
    }
  }
}

}  // namespace
}  // namespace allot::model::cuda
