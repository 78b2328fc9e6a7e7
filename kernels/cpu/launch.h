// Work items of a CPU launch and the entry points of each instruction set. Internal to kernels/.
#pragma once

#include <cstdint>

#include "base/instructions.h"
#include "kernels/attention.h"
#include "kernels/cpu/workspace.h"
#include "kernels/rows.h"

namespace allot::kernels::cpu {

using Isa = InstructionSet;
using allot::name;

// The best one that this processor, the operating system and the build support and that may be used
// (allowed_instructions).
Isa best_isa();

// A part of a launch that one thread does alone. Rows of a head group are numbered query * group size +
// head in group.
struct Item {
  int64_t sequence = 0;
  int32_t kv_head = 0;       // first
  int32_t num_kv_heads = 1;  // more than one only in decode
  int64_t first_query = 0;   // of the sequence's queries in this launch
  int64_t num_queries = 0;
};

// One instruction set's kernels.
struct Kernels {
  void (*attend)(const AttentionParams&, const Item&, Workspace&);
  // Rows [begin, end) of the row operations.
  void (*rms_norm)(const RmsNormParams&, int64_t begin, int64_t end);
  void (*rotate_and_store)(const RotaryParams&, int64_t begin, int64_t end);
  void (*store_value_norms)(const ValueNormsParams&, int64_t begin, int64_t end);
  void (*activate_and_multiply)(const ActivateAndMultiplyParams&, int64_t begin, int64_t end);
  void (*row_divergence)(const DivergenceParams&, int64_t begin, int64_t end);
};

// Kernels of an instruction set that the processor has.
const Kernels& kernels_of(Isa isa);

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAmxKernels;

// attend_cpu and the row operations with a given instruction set instead of the best one: for
// tests and benchmarks.
void attend(const AttentionParams& params, int num_threads, Isa isa);
void rms_norm(const RmsNormParams& params, int num_threads, Isa isa);
void rotate_and_store(const RotaryParams& params, int num_threads, Isa isa);
void store_value_norms(const ValueNormsParams& params, int num_threads, Isa isa);
void activate_and_multiply(const ActivateAndMultiplyParams& params, int num_threads, Isa isa);
void row_divergence(const DivergenceParams& params, int num_threads, Isa isa);

}  // namespace allot::kernels::cpu
