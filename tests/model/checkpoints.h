// The checkpoints of tests/data/parity (made by make_parity_golden.py), copies of them with faults, and
// checkpoints of random weights.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/weights_source.h"

namespace allot::model {

inline const std::filesystem::path kCheckpoints =
    std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/parity";
inline const std::filesystem::path kLlamaGroup4 = kCheckpoints / "llama_group4";  // 2 layers, 512 positions
inline const std::filesystem::path kTinyGsm = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
// LoRA adapters of some of them (made by make_adapter_golden.py), each with its base.
inline const std::filesystem::path kAdapters = std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/adapter";
struct AdapterCase {
  const char* name;
  const char* base;
};
inline constexpr AdapterCase kAdapterCases[] = {
    {"plain", "llama_head64"}, {"patterns", "qwen3_rope_bias"}, {"bfloat16", "mistral_window_sharded"}};
inline constexpr int32_t kVocabulary = 96;  // of each of them; 1 is the eos token

// A copy of a checkpoint, to be changed.
class CopiedCheckpoint : public TemporaryDirectory {
 public:
  explicit CopiedCheckpoint(const std::filesystem::path& original) {
    std::filesystem::copy(original, path());
  }

  // Puts `replacement` in the place of the first `text` of a file; both are of one length.
  void replace(const std::string& file, const std::string& text, const std::string& replacement) const {
    std::string content = read_file(path() / file);
    const size_t place = content.find(text);
    ASSERT_NE(place, std::string::npos) << text;
    content.replace(place, text.size(), replacement);
    write_file_atomically(path() / file, content);
  }
  // Every weight of the last norm becomes a NaN.
  void make_norm_nan() const {
    const SafetensorsFile file(path() / "model.safetensors");
    const TensorView& norm = *std::ranges::find(file.tensors(), "model.norm.weight", &TensorView::name);
    const std::string weights(reinterpret_cast<const char*>(norm.bytes.data()), norm.bytes.size());
    replace("model.safetensors", weights, std::string(weights.size(), '\xFF'));
  }
};

// Writes a model.safetensors into `directory`: the random weights of `seed` as float32.
inline void write_random_checkpoint(const std::filesystem::path& directory, const ModelConfig& config,
                                    uint64_t seed) {
  const WeightsSource source = WeightsSource::random(seed, config);
  std::string header, data;
  for (const auto& [name, shape] : decoder_tensor_shapes(config)) {
    const WeightTensor tensor = source.at(name);
    const size_t begin = data.size();
    data.resize(begin + 4 * static_cast<size_t>(tensor.count()));
    write_elements(tensor, 0, tensor.count(), kernels::DType::kFloat32,
                   reinterpret_cast<std::byte*>(data.data() + begin));
    header += fmt::format("{}\"{}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                          header.empty() ? "{" : ",", name, fmt::join(shape, ","), begin, data.size());
  }
  header += "}";
  const uint64_t length = header.size();
  const std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  write_file_atomically(directory / "model.safetensors", content + header + data);
}

}  // namespace allot::model
