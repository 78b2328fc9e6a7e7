// Directories of LoRA adapters as PEFT writes them, made where a test needs them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace allot::model {

// A tensor of a safetensors file.
struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class Element>
StoredTensor stored_tensor(std::string name, std::string dtype, std::vector<int64_t> shape,
                           const std::vector<Element>& elements) {
  return {std::move(name), std::move(dtype), std::move(shape),
          std::string(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element))};
}

inline std::string safetensors_of(const std::vector<StoredTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const StoredTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

// lora_A [rank, in_features] and lora_B [out_features, rank] of a module of a decoder
// ("model.layers.0.self_attn.q_proj"), float32. The elements of A are multiples of `step` on -8 to 8, those
// of B of a quarter of it.
inline std::vector<StoredTensor> factors_of(const std::string& module, int64_t rank, int64_t in_features,
                                            int64_t out_features, float step = 0.125f) {
  std::vector<float> a, b;
  for (int64_t i = 0; i < rank * in_features; ++i) a.push_back(step * static_cast<float>(i * 7 % 17 - 8));
  for (int64_t i = 0; i < out_features * rank; ++i)
    b.push_back(step / 4 * static_cast<float>(i * 5 % 13 - 6));
  const std::string name = "base_model.model." + module;
  return {stored_tensor(name + ".lora_A.weight", "F32", {rank, in_features}, a),
          stored_tensor(name + ".lora_B.weight", "F32", {out_features, rank}, b)};
}

// adapter_config.json with what PEFT always writes of it.
inline nlohmann::json adapter_settings(int64_t rank, double alpha) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", "somebody/base"},
          {"r", rank},
          {"lora_alpha", alpha},
          {"target_modules", {"q_proj"}},
          {"lora_dropout", 0.05},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"use_rslora", false},
          {"use_dora", false},
          {"modules_to_save", nullptr},
          {"rank_pattern", nlohmann::json::object()},
          {"alpha_pattern", nlohmann::json::object()},
          {"init_lora_weights", true},
          {"inference_mode", true}};
}

inline void write_adapter(const std::filesystem::path& directory, const nlohmann::json& settings,
                          const std::vector<StoredTensor>& tensors) {
  std::filesystem::create_directories(directory);
  write_file_atomically(directory / "adapter_config.json", settings.dump());
  write_file_atomically(directory / "adapter_model.safetensors", safetensors_of(tensors));
}

}  // namespace allot::model
