// What a LoRA adapter adds to one weight of a decoder: scaling * B A, of low rank. The product is never
// stored; its elements are computed where a weight is written. Torch-free.
#pragma once

#include <cstdint>
#include <span>

#include "model/safetensors.h"

namespace allot::model {

struct LowRankUpdate {
  TensorView a;  // [rank, in_features]: F32, F16 or BF16
  TensorView b;  // [out_features, rank]: likewise
  float scaling = 1;

  int64_t rank() const { return a.shape[0]; }
  int64_t in_features() const { return a.shape[1]; }
};

// Adds elements [first, first + values.size()) of scaling * B A, row major, to `values`. In float32: the
// products of an element are added in the order of the rank from 0 on, then multiplied by the scaling, then
// added; each operation is rounded by itself. So an element has the same bits on every processor and whatever
// range it is computed in. Safe to use by several threads at once.
void add_elements(const LowRankUpdate& update, int64_t first, std::span<float> values);

}  // namespace allot::model
