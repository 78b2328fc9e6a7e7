// What transformers computed with a checkpoint of tests/data/parity (make_parity_golden.py says what each
// tensor is), and how far logits are apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/bfloat16.h"
#include "model/safetensors.h"

namespace allot::model {

struct Golden {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<float> logits_bfloat16;
  std::vector<std::vector<int32_t>> prompts;
  int32_t new_tokens = 0;  // at most of each of these
  std::vector<std::vector<int32_t>> greedy;
  std::vector<std::vector<int32_t>> penalised;
};

inline const TensorView& find(const SafetensorsFile& file, const std::string& name) {
  return *std::ranges::find(file.tensors(), name, &TensorView::name);
}

template <class T>
std::vector<T> values_of(const TensorView& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

// Rows of generated tokens; -1 fills them up.
inline std::vector<std::vector<int32_t>> outputs_of(const TensorView& tensor) {
  const std::vector<int32_t> flat = values_of<int32_t>(tensor);
  std::vector<std::vector<int32_t>> rows;
  for (int64_t i = 0; i < tensor.shape[0]; ++i) {
    const auto begin = flat.begin() + i * tensor.shape[1];
    rows.emplace_back(begin, std::find(begin, begin + tensor.shape[1], -1));
  }
  return rows;
}

inline Golden read_golden(const std::filesystem::path& directory) {
  const SafetensorsFile file(directory / "golden.safetensors");
  Golden golden{.ids = values_of<int32_t>(find(file, "ids")),
                .logits = values_of<float>(find(file, "logits")),
                .logits_bfloat16 = {},
                .prompts = {},
                .new_tokens = static_cast<int32_t>(find(file, "greedy").shape[1]),
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

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max<double>(largest, std::abs(a[i] - b[i]));
  return largest;
}

inline double root_mean_square_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

}  // namespace allot::model
