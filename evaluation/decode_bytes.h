// What a decode step reads from memory, and how much faster it becomes where attention does: the bandwidth
// model of the S2ANTA paper, section 3.5. Exact where nothing but reading takes time; activations, what is
// written (such as keys that are restored from planes, docs/internals/engine.md) and read again, and the
// launching of kernels are left out.
#pragma once

#include <cstdint>

#include "kernels/cache_format.h"
#include "kernels/method.h"
#include "model/model_config.h"
#include "model/weight_storage.h"
#include "policy/schedule.h"

namespace allot::evaluation {

struct DecodeShape {
  int64_t sequences = 1;          // decoded together
  int64_t keys = 0;               // of each
  int64_t bytes_per_element = 2;  // of weights, keys and values, where they have no 8 bits
  model::WeightStorage weights = model::WeightStorage::kDtype;
  // Split keys have a byte an element in each plane, and 4 bytes a key beside the high one.
  kernels::CacheFormat key_format = kernels::CacheFormat::kDtype;
  // Others than the dtype are those of other engines, or of none.
  kernels::CacheFormat value_format = kernels::CacheFormat::kDtype;
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
// Under a schedule: of a KV head at most as many value rows as its group of query heads has samples in that
// layer, and no more than there are; all of an exact layer. Of split keys the high planes of all, and the low
// ones of as many as of value rows. Throws InvalidArgument as exact_bytes() does, and
// where the schedule is not one of the model's layers.
DecodeBytes sampled_bytes(const model::ModelConfig& config, const DecodeShape& shape,
                          const policy::Schedule& schedule, kernels::BudgetUnit unit);

// By which factor a step with exact attention becomes faster where attention alone does by
// `attention_speedup`.
double step_speedup(const DecodeBytes& exact, double attention_speedup);

}  // namespace allot::evaluation
