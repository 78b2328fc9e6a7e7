// The shapes that `allot bench attention` measures: decode steps of a batch of sequences, with the samples
// that each sequence draws. Pure numbers; arrays are made elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/key_format.h"
#include "kernels/method.h"

namespace allot::bench::attention {

using kernels::KeyFormat;

struct Shape {
  std::string name;
  int32_t batch = 1;
  int32_t shortest = 0;  // keys of the shortest sequence; lengths are uniform from here to `longest`
  int32_t longest = 0;
  int32_t num_q_heads = 32;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t fewest_samples = 128;  // budgets are uniform from here to `most_samples`
  int32_t most_samples = 128;

  bool ragged() const { return shortest != longest; }
};

// The shapes that docs/internals/kernels.md reports, in its order.
std::vector<Shape> standard_shapes();

// The standard shapes called `names` (separated by commas, in that order); every one when `names` is empty.
// Throws UsageError that lists the known names.
std::vector<Shape> select_shapes(std::string_view names);

// The estimators called `names`, separated by commas; all when `names` is empty.
// Throws UsageError for an unknown name, and for an estimator without a CUDA kernel.
std::vector<kernels::Estimator> select_estimators(std::string_view names);

// The key formats called `names`, separated by commas. Throws UsageError for an unknown name.
std::vector<KeyFormat> select_key_formats(std::string_view names);

// [batch] keys of each sequence and [batch] samples of each sequence: the same numbers on every call.
std::vector<int32_t> lengths_of(const Shape& shape);
std::vector<int32_t> budgets_of(const Shape& shape);

// Why the method cannot run with these lengths and budgets; empty when it can. Some estimators have no rows
// for a unit, some draw at least one sample from each tile.
std::string why_unsuitable(const kernels::AttentionMethod& method, const std::vector<int32_t>& lengths,
                           const std::vector<int32_t>& budgets);

// Bytes of all keys of the batch, `element_bytes` each number; the values have as many.
int64_t key_bytes(const Shape& shape, const std::vector<int32_t>& lengths, int64_t element_bytes);

}  // namespace allot::bench::attention
