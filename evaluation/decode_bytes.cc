#include "evaluation/decode_bytes.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/error.h"
#include "episode/samples.h"
#include "evaluation/checked_numbers.h"

namespace allot::evaluation {
namespace {

void check(const DecodeShape& shape) {
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
  if (config.sub_norms) layer += queries + intermediate;
  if (config.qk_norm) layer += 2 * int64_t{config.head_dim};
  return config.num_layers * layer + hidden + int64_t{config.vocab_size} * hidden;
}

// Of the weights' products, what quantised ones have less.
int64_t bytes_saved(const model::ModelConfig& config, const DecodeShape& shape) {
  return model::step_weight_bytes(config, shape.bytes_per_element, model::WeightStorage::kDtype) -
         model::step_weight_bytes(config, shape.bytes_per_element, shape.weights);
}

// Bytes of a key of one KV head: those that scores read, and those that only a row drawn has read.
struct KeyBytes {
  int64_t scored = 0;
  int64_t drawn = 0;
};

KeyBytes key_bytes(const model::ModelConfig& config, const DecodeShape& shape) {
  const int64_t bytes = kernels::row_bytes(shape.key_format, config.head_dim, shape.bytes_per_element);
  const int64_t low = shape.key_format == kernels::CacheFormat::kSplit ? config.head_dim : 0;
  return {.scored = bytes - low, .drawn = low};
}

int64_t value_bytes(const model::ModelConfig& config, const DecodeShape& shape) {
  return kernels::row_bytes(shape.value_format, config.head_dim, shape.bytes_per_element);
}

}  // namespace

DecodeBytes exact_bytes(const model::ModelConfig& config, const DecodeShape& shape) {
  check(shape);
  const int64_t rows = product({shape.sequences, shape.keys, config.num_layers, config.num_kv_heads});
  const KeyBytes key = key_bytes(config, shape);
  return {.weights = product({weight_elements(config), shape.bytes_per_element}) - bytes_saved(config, shape),
          .keys = product({rows, key.scored + key.drawn}),
          .values = product({rows, value_bytes(config, shape)})};
}

DecodeBytes sampled_bytes(const model::ModelConfig& config, const DecodeShape& shape,
                          const policy::Schedule& schedule, kernels::BudgetUnit unit) {
  if (std::ssize(schedule.samples) != config.num_layers)
    throw InvalidArgument(fmt::format("decode bytes: the schedule has {} layers, the model has {}",
                                      schedule.samples.size(), config.num_layers));
  DecodeBytes bytes = exact_bytes(config, shape);
  const KeyBytes key = key_bytes(config, shape);
  const int64_t heads = shape.sequences * config.num_kv_heads;
  bytes.keys = bytes.values = 0;
  for (const int32_t samples : schedule.samples) {
    const int64_t rows =
        samples == kExactLayer
            ? shape.keys
            : std::min(shape.keys,
                       kernels::rows_of_group(unit, samples, config.num_q_heads / config.num_kv_heads));
    bytes.keys += heads * (shape.keys * key.scored + rows * key.drawn);
    bytes.values += heads * rows * value_bytes(config, shape);
  }
  return bytes;
}

double step_speedup(const DecodeBytes& exact, double attention_speedup) {
  const auto weights = static_cast<double>(exact.weights);
  const auto attention = static_cast<double>(exact.keys + exact.values);
  return (weights + attention) / (weights + attention / attention_speedup);
}

}  // namespace allot::evaluation
