#include "evaluation/operations.h"

#include <algorithm>
#include <array>

#include "evaluation/checked_numbers.h"

namespace allot::evaluation {
namespace {

constexpr double kMultiplicationPicojoules = 3.7;
constexpr double kAdditionPicojoules = 0.9;

void check(const AttentionShape& shape) {
  at_least_1("queries", shape.queries);
  at_least_1("keys", shape.keys);
  at_least_1("head_dim", shape.head_dim);
  at_least_1("group", shape.group);
}

}  // namespace

std::string_view name(ValueStage stage) {
  static constexpr std::array<std::string_view, 4> kNames = {"exact", "topk", "sys", "joint"};
  return kNames[static_cast<size_t>(stage)];
}

Operations score_operations(const AttentionShape& shape) {
  check(shape);
  const int64_t products = product({shape.queries, shape.keys, shape.head_dim});
  return {.additions = products,
          .multiplications = products,
          .reads = product({shape.queries + shape.keys, shape.head_dim}),
          .writes = product({shape.queries, shape.keys})};
}

Operations value_operations(const AttentionShape& shape, ValueStage stage, int64_t samples) {
  check(shape);
  const int64_t outputs = product({shape.queries, shape.head_dim});
  if (stage == ValueStage::kExact) samples = shape.keys;
  at_least_1("samples", samples);
  if (stage == ValueStage::kCounted) {
    const int64_t elements = product({outputs, samples});
    return {.additions = elements, .multiplications = outputs, .reads = elements, .writes = outputs};
  }
  // Each head weighs all rows of its group, and the group reads them once.
  const int64_t heads = stage == ValueStage::kWeighted ? shape.group : 1;
  const int64_t rows = std::min(product({samples, heads}), shape.keys);
  const int64_t elements = product({outputs, rows});
  return {.additions = elements, .multiplications = elements, .reads = elements / heads, .writes = outputs};
}

double picojoules(const Operations& operations) {
  return kMultiplicationPicojoules * static_cast<double>(operations.multiplications) +
         kAdditionPicojoules * static_cast<double>(operations.additions);
}

}  // namespace allot::evaluation
