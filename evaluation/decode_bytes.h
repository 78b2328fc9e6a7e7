// What a decode step reads from memory, and how much faster it becomes where attention does: the bandwidth
// model of the S2ANTA paper, section 3.5. Exact where nothing but reading takes time; activations, what is
// written and the launching of kernels are left out.
#pragma once

#include <cstdint>

#include "model/model_config.h"

namespace allot::evaluation {

struct DecodeShape {
  int64_t sequences = 1;          // decoded together
  int64_t keys = 0;               // of each
  int64_t bytes_per_element = 2;  // of weights, keys and values
};

// Bytes that all layers of a step read.
struct DecodeBytes {
  int64_t weights = 0;  // of every product and norm; of the input embedding's rows too few to count
  int64_t keys = 0;
  int64_t values = 0;
  int64_t total() const { return weights + keys + values; }
  friend bool operator==(const DecodeBytes&, const DecodeBytes&) = default;
};

// With exact attention. Throws InvalidArgument where a number of the shape is below 1 or a product does not
// fit into 64 bits.
DecodeBytes exact_bytes(const model::ModelConfig& config, const DecodeShape& shape);
// Where every query head has `samples` samples (at least 1) in every layer: of a KV head at most as many
// value rows as its group of query heads has samples, and no more than there are.
DecodeBytes sampled_bytes(const model::ModelConfig& config, const DecodeShape& shape, int64_t samples);

// By which factor a step with exact attention becomes faster where attention alone does by
// `attention_speedup`.
double step_speedup(const DecodeBytes& exact, double attention_speedup);

}  // namespace allot::evaluation
