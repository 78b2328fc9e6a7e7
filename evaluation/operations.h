// How many scalar operations and memory accesses attention needs in theory, for one query head: tables 10 and
// 12 of the S2ANTA paper (Appendices E and G), with the estimators that weigh what they read beside them.
// Softmax, sampling and selection are left out, as there, and so is whatever a device does to them: caches,
// fused operations, transfers of a size of their own.
#pragma once

#include <cstdint>
#include <string_view>

namespace allot::evaluation {

// What an estimator does with the value rows that it reads.
enum class ValueStage {
  kExact,     // weighs and adds all
  kTopK,      // weighs and adds the k largest
  kCounted,   // adds S and divides once: iid, strat and sys
  kWeighted,  // weighs and adds S g rows that the g heads of a group read together: joint and pooled
};
std::string_view name(ValueStage stage);  // exact, topk, sys, joint

struct AttentionShape {
  int64_t queries = 1;  // of a pass: 1 in decoding
  int64_t keys = 0;     // that each query sees
  int64_t head_dim = 128;
  int64_t group = 1;  // query heads that share a KV head
};

// Of one query head, in elements. Reads of the value stage are those of every query, not of distinct rows.
struct Operations {
  int64_t additions = 0;
  int64_t multiplications = 0;  // and divisions
  int64_t reads = 0;            // of keys and queries, or of values
  int64_t writes = 0;
  friend bool operator==(const Operations&, const Operations&) = default;
};

// Scores q K^T: the same for all.
Operations score_operations(const AttentionShape& shape);
// Weighted or counted values. `samples` (k or S, at least 1) does not count under kExact. A weighted
// estimator and topk read no row twice, so their rows are at most the keys; counted ones draw a row as often
// as it comes. Throws InvalidArgument where a number is below 1 or a product does not fit into 64 bits.
Operations value_operations(const AttentionShape& shape, ValueStage stage, int64_t samples);

// Energy of the arithmetic alone, in picojoules: 3.7 a 32-bit floating-point multiplication, 0.9 an addition
// (the S2ANTA paper, Appendix H, after Horowitz, 2014).
double picojoules(const Operations& operations);

}  // namespace allot::evaluation
