#include "model/weights_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"
#include "tests/model/checkpoints.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using kernels::DType;
using ::testing::ThrowsMessage;

TEST(DecoderTensorShapes, AreThoseOfTheCheckpointsThatTransformersWrites) {
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCheckpoints)) {
    if (!entry.is_directory()) continue;
    const Checkpoint checkpoint = Checkpoint::open(entry.path());
    std::map<std::string, std::vector<int64_t>> stored;
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      if (name.ends_with(".weight_scale")) continue;
      stored[name] = tensor.shape;
      if (tensor.dtype == TensorDType::kU8) stored[name][0] *= 4;
    }
    EXPECT_EQ(decoder_tensor_shapes(read_model_config(entry.path())), stored) << entry.path();
    ++checkpoints;
  }
  EXPECT_EQ(checkpoints, 18);
}

TEST(DecoderTensorShapes, OfTheFullSizeConfigurationsHaveThePublishedNumberOfParameters) {
  const auto parameters = [](const char* name) {
    const auto directory = std::filesystem::path(ALLOT_SOURCE_DIR) / "configs/shapes" / name;
    int64_t count = 0;
    for (const auto& [tensor, shape] : decoder_tensor_shapes(read_model_config(directory))) {
      count += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
    }
    return count;
  };
  EXPECT_EQ(parameters("llama-3.1-8b"), 8'030'261'248);
  EXPECT_EQ(parameters("llama-3.1-70b"), 70'553'706'496);
  EXPECT_EQ(parameters("qwen2-7b"), 7'615'616'512);
  EXPECT_EQ(parameters("bitnet-2b"), 2'412'820'480);
}

// The value of element `index` as its file has it.
float stored_value(const TensorView& tensor, int64_t index) {
  if (tensor.dtype == TensorDType::kF32) {
    float value = 0;
    std::memcpy(&value, tensor.bytes.data() + 4 * index, 4);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, tensor.bytes.data() + 2 * index, 2);
  return tensor.dtype == TensorDType::kBF16 ? kernels::float_from_bfloat16(bits)
                                            : kernels::float_from_float16(bits);
}

TEST(WeightsSource, OfACheckpointGivesAnyRangeOfATensorInEveryDType) {
  for (const auto& [name, dtype] : {std::pair("llama_rope_head24", TensorDType::kF32),
                                    {"llama_group4", TensorDType::kBF16},
                                    {"llama_tied", TensorDType::kF16}}) {
    const std::filesystem::path directory = kCheckpoints / name;
    const WeightsSource source = WeightsSource::checkpoint(directory, read_model_config(directory));
    const Checkpoint checkpoint = Checkpoint::open(directory);
    const TensorView& stored = checkpoint.at("model.layers.1.self_attn.k_proj.weight");
    const WeightTensor tensor = source.at(stored.name);
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.shape, stored.shape);
    constexpr int64_t kFirst = 37, kCount = 150;
    ASSERT_LE(kFirst + kCount, tensor.count());
    std::vector<float> wide(kCount);
    std::vector<uint16_t> narrow(kCount), half(kCount);
    write_elements(tensor, kFirst, kCount, DType::kFloat32, reinterpret_cast<std::byte*>(wide.data()));
    write_elements(tensor, kFirst, kCount, DType::kBFloat16, reinterpret_cast<std::byte*>(narrow.data()));
    write_elements(tensor, kFirst, kCount, DType::kFloat16, reinterpret_cast<std::byte*>(half.data()));
    for (int64_t i = 0; i < kCount; ++i) {
      const float expected = stored_value(stored, kFirst + i);
      ASSERT_EQ(wide[i], expected) << name << " " << i;
      ASSERT_EQ(narrow[i], kernels::bfloat16_from_float(expected)) << name << " " << i;
      ASSERT_EQ(half[i], kernels::float16_from_float(expected)) << name << " " << i;
    }
  }
}

std::vector<float> all_of(const WeightTensor& tensor) {
  std::vector<float> values(tensor.count());
  write_elements(tensor, 0, tensor.count(), DType::kFloat32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

constexpr const char* kValueWeights = "model.layers.1.self_attn.v_proj.weight";

// The definitions of transformers' WeightQuant, written down once more.
TEST(WeightsSource, RoundsFullNumbersToTernaryWeightsByTheirMeanMagnitude) {
  const std::filesystem::path directory = kCheckpoints / "bitnet_online";
  const WeightsSource source = WeightsSource::checkpoint(directory, read_model_config(directory));
  const Checkpoint checkpoint = Checkpoint::open(directory);
  const TensorView& stored = checkpoint.at(kValueWeights);
  const WeightTensor tensor = source.at(stored.name);
  double sum = 0;
  for (int64_t i = 0; i < tensor.count(); ++i) sum += std::abs(stored_value(stored, i));
  const double mean = sum / static_cast<double>(tensor.count());
  const std::vector<float> weights = all_of(tensor);
  std::map<double, int> counts;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const double sign = std::clamp(std::nearbyint(stored_value(stored, i) / mean), -1.0, 1.0);
    ++counts[sign];
    ASSERT_NEAR(weights[static_cast<size_t>(i)], sign * mean, 1e-6 * mean) << i;
  }
  EXPECT_EQ(counts.size(), 3U);
  EXPECT_FALSE(source.at("model.embed_tokens.weight").rounding);
  EXPECT_FALSE(source.at("model.layers.1.mlp.ffn_sub_norm.weight").rounding);
}

TEST(WeightsSource, UnpacksFourTernaryWeightsOfAByteFromFourQuartersOfTheRows) {
  for (const auto& [name, divides] : {std::pair("bitnet_packed", false), {"bitnet_bitlinear", true}}) {
    const std::filesystem::path directory = kCheckpoints / name;
    const WeightsSource source = WeightsSource::checkpoint(directory, read_model_config(directory));
    const Checkpoint checkpoint = Checkpoint::open(directory);
    const TensorView& stored = checkpoint.at(kValueWeights);
    const float scale = stored_value(checkpoint.at(stored.name + "_scale"), 0);
    const WeightTensor tensor = source.at(stored.name);
    ASSERT_EQ(tensor.shape[0], 4 * stored.shape[0]);
    const std::vector<float> weights = all_of(tensor);
    const auto quarter = static_cast<int64_t>(stored.bytes.size());
    int not_zero = 0;
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const int sign = (std::to_integer<int>(stored.bytes[i % quarter]) >> (2 * (i / quarter)) & 3) - 1;
      ASSERT_EQ(weights[i], static_cast<float>(sign) * (divides ? 1 / scale : scale)) << name << " " << i;
      not_zero += sign != 0;
    }
    EXPECT_GT(not_zero, tensor.count() / 2);
    // A range that begins in one quarter and ends in the next but one.
    const int64_t first = quarter - 5, count = quarter + 11;
    std::vector<uint16_t> narrow(static_cast<size_t>(count));
    write_elements(tensor, first, count, DType::kBFloat16, reinterpret_cast<std::byte*>(narrow.data()));
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(narrow[i], kernels::bfloat16_from_float(weights[first + i])) << name << " " << i;
  }
}

TEST(WeightsSource, PackedWeightsThatAreNotWhatTheConfigurationSaysAreRefusedWithTheirName) {
  const CopiedCheckpoint copy(kCheckpoints / "bitnet_packed");
  const ModelConfig config = read_model_config(copy.path());
  const auto load = [&](const ModelConfig& with) {
    return [&copy, with] { (void)WeightsSource::checkpoint(copy.path(), with).at(kValueWeights); };
  };
  EXPECT_NO_THROW(load(config)());
  ModelConfig other = config;
  other.ternary = TernaryWeights::kMaster;
  EXPECT_THAT(load(other), ThrowsMessage<Unsupported>(Names(kValueWeights, "[16, 64]", "[64, 64]")));
  other = config;
  other.head_dim = 62;
  EXPECT_THAT(load(other),
              ThrowsMessage<Unsupported>(Names(kValueWeights, "U8", "[16, 64]", "[15, 64]", 62)));
  // 3 in the second pair of bits.
  const Checkpoint checkpoint = Checkpoint::open(copy.path());
  const auto bytes = checkpoint.at(kValueWeights).bytes;
  const std::string whole(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::string broken = whole;
  broken[1000] = 0x1C;
  copy.replace("model.safetensors", whole, broken);
  EXPECT_THAT(load(config), ThrowsMessage<CorruptFile>(Names(kValueWeights, 28, 1000)));
}

// Both add in float32, in orders of their own: each of at most 9 products of a few tenths is rounded, and so
// is their sum with a weight below 8.
TEST(WeightsSource, WithAnAdapterHasTheWeightsThatPeftMerges) {
  constexpr double kTolerance = 2e-6;
  for (const auto& [name, base] : kAdapterCases) {
    const ModelConfig config = read_model_config(kCheckpoints / base);
    const WeightsSource plain = WeightsSource::checkpoint(kCheckpoints / base, config);
    const WeightsSource merged =
        WeightsSource::checkpoint(kCheckpoints / base, config, Adapter::open(kAdapters / name, config));
    const SafetensorsFile golden(kAdapters / name / "golden.safetensors");
    size_t adapted = 0;
    double moved = 0;
    for (const auto& [tensor, shape] : decoder_tensor_shapes(config)) {
      const auto expected = std::ranges::find(golden.tensors(), tensor, &TensorView::name);
      const std::vector<float> before = all_of(plain.at(tensor)), after = all_of(merged.at(tensor));
      if (expected == golden.tensors().end()) {
        EXPECT_EQ(after, before) << name << " " << tensor;
        continue;
      }
      ++adapted;
      for (size_t i = 0; i < after.size(); ++i) {
        ASSERT_NEAR(after[i], stored_value(*expected, static_cast<int64_t>(i)), kTolerance)
            << name << " " << tensor << " " << i;
        moved = std::max<double>(moved, std::abs(after[i] - before[i]));
      }
    }
    EXPECT_EQ(adapted, Adapter::open(kAdapters / name, config).modules().size()) << name;
    EXPECT_GT(moved, 0.1) << name;
  }
}

TEST(WeightsSource, WithAnAdapterRoundsTheSumOnceAndGivesAnyRange) {
  for (const auto& [name, base] : kAdapterCases) {
    const ModelConfig config = read_model_config(kCheckpoints / base);
    const WeightsSource source =
        WeightsSource::checkpoint(kCheckpoints / base, config, Adapter::open(kAdapters / name, config));
    const WeightTensor tensor =
        source.at("model.layers.1.self_attn." +
                  std::string(name == std::string("bfloat16") ? "o_proj" : "q_proj") + ".weight");
    ASSERT_TRUE(tensor.update);
    const std::vector<float> whole = all_of(tensor);
    const int64_t first = tensor.shape[1] + 5, count = 3 * tensor.shape[1] + 7;
    std::vector<float> wide(count);
    std::vector<uint16_t> narrow(count), half(count);
    write_elements(tensor, first, count, DType::kFloat32, reinterpret_cast<std::byte*>(wide.data()));
    write_elements(tensor, first, count, DType::kBFloat16, reinterpret_cast<std::byte*>(narrow.data()));
    write_elements(tensor, first, count, DType::kFloat16, reinterpret_cast<std::byte*>(half.data()));
    for (int64_t i = 0; i < count; ++i) {
      const float expected = whole[first + i];
      ASSERT_EQ(wide[i], expected) << name << " " << i;
      ASSERT_EQ(narrow[i], kernels::bfloat16_from_float(expected)) << name << " " << i;
      ASSERT_EQ(half[i], kernels::float16_from_float(expected)) << name << " " << i;
    }
  }
}

TEST(WeightsSource, OfASeedMakesNormsOfOnesAndEverythingElseWithTheConfigurationsDeviation) {
  ModelConfig config = read_model_config(kCheckpoints / "qwen3_rope_bias");
  config.initializer_range = 0.125;
  const WeightsSource source = WeightsSource::random(5, config);
  for (const auto& [name, shape] : decoder_tensor_shapes(config)) {
    const WeightTensor tensor = source.at(name);
    EXPECT_EQ(tensor.name, name);
    EXPECT_EQ(tensor.shape, shape);
    EXPECT_EQ(tensor.dtype, TensorDType::kF32);
    std::vector<float> values(tensor.count()), expected(tensor.count(), 1);
    write_elements(tensor, 0, tensor.count(), DType::kFloat32, reinterpret_cast<std::byte*>(values.data()));
    if (name.find("norm") == std::string::npos) fill_random(random_tensor(5, name, 0.125), 0, expected);
    EXPECT_EQ(values, expected) << name;
  }
}

TEST(WeightsSource, OfASeedWritesRangesInEveryDType) {
  constexpr int64_t kFirst = 51, kCount = 5000;  // more than are made at a time before they become float16
  const ModelConfig config = read_model_config(kCheckpoints / "llama_group4");
  const WeightTensor tensor = WeightsSource::random(5, config).at("lm_head.weight");
  ASSERT_LE(kFirst + kCount, tensor.count());
  std::vector<float> wide(kCount);
  std::vector<uint16_t> narrow(kCount), half(kCount);
  write_elements(tensor, kFirst, kCount, DType::kFloat32, reinterpret_cast<std::byte*>(wide.data()));
  write_elements(tensor, kFirst, kCount, DType::kBFloat16, reinterpret_cast<std::byte*>(narrow.data()));
  write_elements(tensor, kFirst, kCount, DType::kFloat16, reinterpret_cast<std::byte*>(half.data()));
  for (int64_t i = 0; i < kCount; ++i) {
    const float expected = random_element(std::get<RandomTensor>(tensor.elements), kFirst + i);
    ASSERT_EQ(wide[i], expected) << i;
    ASSERT_EQ(narrow[i], kernels::bfloat16_from_float(expected)) << i;
    ASSERT_EQ(half[i], kernels::float16_from_float(expected)) << i;
  }
}

TEST(WeightsSource, RefusesANameThatTheDecoderDoesNotHave) {
  const ModelConfig config = read_model_config(kCheckpoints / "llama_tied");
  for (const WeightsSource& source :
       {WeightsSource::random(1, config), WeightsSource::checkpoint(kCheckpoints / "llama_tied", config)}) {
    EXPECT_THAT([&] { (void)source.at("lm_head.weight"); },
                ThrowsMessage<InvalidArgument>(Names("lm_head.weight")));
  }
}

// --- Parts of ranks

// Rows and columns of all ranks together are the whole tensor, biases of sums are added once, and what is not
// shared out is whole on every rank.
TEST(WeightsSource, PartsOfAllRanksAreTheWholeTensor) {
  for (const auto& [name, ranks] : {std::pair("llama_bias_sharded", 3), {"qwen3_group4_tied", 2}}) {
    ModelConfig config = read_model_config(kCheckpoints / name);
    const bool divides = config.intermediate_size % ranks == 0;
    if (!divides) config.intermediate_size -= config.intermediate_size % ranks;  // of random weights alone
    const ModelConfig of_rank = config_of_rank(config, ranks);
    std::vector<WeightsSource> sources;
    sources.push_back(WeightsSource::random(5, config));
    if (divides) sources.push_back(WeightsSource::checkpoint(kCheckpoints / name, config));
    for (const WeightsSource& source : sources) {
      const auto shapes_of_rank = decoder_tensor_shapes(of_rank);
      for (const auto& [tensor_name, shape] : decoder_tensor_shapes(config)) {
        const WeightTensor whole = source.at(tensor_name);
        const std::vector<float> expected = all_of(whole);
        std::vector<float> sum(expected.size(), 0);
        for (int32_t rank = 0; rank < ranks; ++rank) {
          const WeightTensor part = part_of(whole, {rank, ranks});
          ASSERT_EQ(part.shape, shapes_of_rank.at(tensor_name)) << tensor_name;
          const std::vector<float> values = all_of(part);
          const bool is_weight = shape.size() == 2;
          const int64_t width = is_weight ? part.shape[1] : 1, pitch = is_weight ? shape[1] : 1;
          const bool rows = part.shape[0] < shape[0], columns = width < pitch;
          const bool is_added =
              tensor_name.ends_with("o_proj.bias") || tensor_name.ends_with("down_proj.bias");
          if (!rows && !columns && !is_added) {
            ASSERT_EQ(values, expected) << tensor_name;
            continue;
          }
          for (int64_t i = 0; i < part.count(); ++i) {
            const int64_t row = i / width + (rows ? rank * part.shape[0] : 0);
            const int64_t column = i % width + (columns ? rank * width : 0);
            sum[static_cast<size_t>(row * pitch + column)] += values[static_cast<size_t>(i)];
          }
        }
        if (sum != std::vector<float>(sum.size(), 0)) {
          EXPECT_EQ(sum, expected) << tensor_name;
        }
      }
    }
  }
}

TEST(WeightsSource, RangesOfAPartAreThoseOfTheWholePart) {
  const ModelConfig config = read_model_config(kCheckpoints / "llama_group4");
  const WeightsSource source = WeightsSource::checkpoint(kCheckpoints / "llama_group4", config);
  for (const WeightTensor& tensor : {part_of(source.at("model.layers.1.mlp.down_proj.weight"), {1, 2}),
                                     rows_of(source.at("lm_head.weight"), 40, 17)}) {
    const std::vector<float> all = all_of(tensor);
    for (const int64_t first : {0, 1, 35, 36, 37, 100}) {
      for (const int64_t count : {0, 1, 36, 40, 150}) {
        std::vector<uint16_t> part(static_cast<size_t>(count) + 1, 0x5555);
        write_elements(tensor, first, count, DType::kBFloat16, reinterpret_cast<std::byte*>(part.data()));
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(part[static_cast<size_t>(i)],
                    kernels::bfloat16_from_float(all[static_cast<size_t>(first + i)]));
        }
        EXPECT_EQ(part.back(), 0x5555);
      }
    }
  }
  EXPECT_EQ(rows_of(source.at("lm_head.weight"), 96, 0).count(), 0);
}

}  // namespace
}  // namespace allot::model
