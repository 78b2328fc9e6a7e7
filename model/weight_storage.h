// How an engine keeps the weights of a decoder's products. Torch-free.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "kernels/estimator.h"
#include "model/model_config.h"

namespace allot::model {

enum class WeightStorage : uint8_t {
  kDtype,  // all of the engine's dtype
  kFp8,    // those of the layers' products as e4m3 with a scale for every output channel (kernels/fp8.h)
  kFp8AndLogits,  // those of the logits' product, too
};

struct WeightStorageName {
  WeightStorage storage;
  std::string_view name;  // of the option --weights
};
inline constexpr std::array<WeightStorageName, 3> kWeightStorages{
    {{WeightStorage::kDtype, "dtype"},
     {WeightStorage::kFp8, "fp8"},
     {WeightStorage::kFp8AndLogits, "fp8-logits"}}};

inline std::string_view name(WeightStorage storage) {
  return kWeightStorages.at(static_cast<size_t>(storage)).name;
}

// Throws InvalidArgument for another name.
inline WeightStorage parse_weight_storage(std::string_view name) {
  for (const WeightStorageName& one : kWeightStorages) {
    if (one.name == name) return one.storage;
  }
  throw InvalidArgument("weights are \"" + std::string(name) + "\"; expected dtype, fp8 or fp8-logits");
}

// Whether a product of these in_features is quantised where its weights are to be: with others, which are no
// multiple of 16, they keep the dtype.
constexpr bool quantizes(int64_t in_features) {
  return in_features % 16 == 0;
}

// Bytes of all weights of a decoder, so stored. With kFp8AndLogits a tied embedding is there twice: as rows
// of `dtype`, and quantised.
int64_t stored_weight_bytes(const ModelConfig& config, kernels::DType dtype, WeightStorage storage);

// Those that every decode step reads: the weights of the products, the logits' too, with their scales. Those
// that are not quantised have `bytes_per_element`.
int64_t step_weight_bytes(const ModelConfig& config, int64_t bytes_per_element, WeightStorage storage);

}  // namespace allot::model
