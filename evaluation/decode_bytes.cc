#include "evaluation/decode_bytes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "base/error.h"

namespace allot::evaluation {
namespace {

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(result, factor, &result))
      throw InvalidArgument(
          fmt::format("decode bytes: {} does not fit into 64 bits; fewer sequences or keys are expected",
                      fmt::join(factors, " x ")));
  return result;
}

void check(const DecodeShape& shape) {
  const auto at_least_1 = [](std::string_view what, int64_t number) {
    if (number < 1)
      throw InvalidArgument(fmt::format("decode bytes: {} is {}, expected at least 1", what, number));
  };
  at_least_1("sequences", shape.sequences);
  at_least_1("keys", shape.keys);
  at_least_1("bytes_per_element", shape.bytes_per_element);
}

// Elements of the weights that a step reads once, however many sequences it decodes.
int64_t weight_elements(const model::ModelConfig& config) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t queries = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t keys = int64_t{config.num_kv_heads} * config.head_dim;
  int64_t layer = hidden * (2 * queries + 2 * keys) + 3 * hidden * intermediate + 2 * hidden;
  if (config.attention_bias) layer += queries + 2 * keys;
  if (config.attention_output_bias) layer += hidden;
  if (config.mlp_bias) layer += 2 * intermediate + hidden;
  if (config.qk_norm) layer += 2 * int64_t{config.head_dim};
  return config.num_layers * layer + hidden + int64_t{config.vocab_size} * hidden;
}

// Of `rows` keys or values of every KV head and sequence.
int64_t row_bytes(const model::ModelConfig& config, const DecodeShape& shape, int64_t rows) {
  return product({shape.sequences, rows, config.num_layers, config.num_kv_heads, config.head_dim,
                  shape.bytes_per_element});
}

}  // namespace

DecodeBytes exact_bytes(const model::ModelConfig& config, const DecodeShape& shape) {
  check(shape);
  const int64_t rows = row_bytes(config, shape, shape.keys);
  return {
      .weights = product({weight_elements(config), shape.bytes_per_element}), .keys = rows, .values = rows};
}

DecodeBytes sampled_bytes(const model::ModelConfig& config, const DecodeShape& shape, int64_t samples) {
  if (samples < 1)
    throw InvalidArgument(fmt::format("decode bytes: samples is {}, expected at least 1", samples));
  DecodeBytes bytes = exact_bytes(config, shape);
  const int64_t group = config.num_q_heads / config.num_kv_heads;
  bytes.values = row_bytes(config, shape, std::min(shape.keys, product({samples, group})));
  return bytes;
}

double step_speedup(const DecodeBytes& exact, double attention_speedup) {
  const auto weights = static_cast<double>(exact.weights);
  const auto attention = static_cast<double>(exact.keys + exact.values);
  return (weights + attention) / (weights + attention / attention_speedup);
}

}  // namespace allot::evaluation
