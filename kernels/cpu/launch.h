// Work items of a CPU launch and the entry points of each instruction set. Internal to kernels/.
#pragma once

#include <cstdint>

#include "base/instructions.h"
#include "kernels/attention.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/workspace.h"
#include "kernels/product.h"
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

// Whether products of this type are by matrix tiles (cpu/product_amx.h), which want the matrix in an order of
// their own.
constexpr bool multiplies_in_tiles(Isa isa, DType dtype) {
  return isa == Isa::kAmx && dtype == DType::kBFloat16;
}
// Elements of the width in a tile, and columns of the matrix that lie together in two.
inline constexpr int64_t kTileWidth = 32;
inline constexpr int64_t kTilePanelColumns = int64_t{2} * kLanes;
// Rows that tiles of the matrix are multiplied with while these are in a cache.
inline constexpr int64_t kTileProductRows = 256;

// Rows of other products that share a panel of the matrix (cpu/product_kernel.h) while it is in the first
// cache.
inline constexpr int64_t kProductRows = 96;
// Of the width, a part that they share: 16 KiB of floats of the panel, 6 KiB of six rows.
inline constexpr int64_t kProductWidth = 256;

// Memory of a thread for a product.
struct ProductScratch {
  float* rows = nullptr;      // [min(rows, kProductRows) * width]
  float* sums = nullptr;      // [kProductRows, kLanes]
  float* panel = nullptr;     // [kProductWidth, kLanes]
  uint16_t* tiles = nullptr;  // [min(rows, kTileProductRows), width] in whole tiles, on a cache line
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
  // Columns [begin, end), begin a multiple of those of a panel.
  void (*multiply)(const ProductParams&, int64_t begin, int64_t end, const ProductScratch&);
};

// Kernels of an instruction set that the processor has.
const Kernels& kernels_of(Isa isa);

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAmxKernels;

// attend_cpu, the row operations and products with a given instruction set instead of the best one, for which
// the matrix has to be packed: for tests and benchmarks.
void attend(const AttentionParams& params, int num_threads, Isa isa);
void rms_norm(const RmsNormParams& params, int num_threads, Isa isa);
void rotate_and_store(const RotaryParams& params, int num_threads, Isa isa);
void store_value_norms(const ValueNormsParams& params, int num_threads, Isa isa);
void activate_and_multiply(const ActivateAndMultiplyParams& params, int num_threads, Isa isa);
void row_divergence(const DivergenceParams& params, int num_threads, Isa isa);
int64_t packed_matrix_bytes(int64_t columns, int64_t width, DType dtype, Isa isa);
void pack_matrix(const void* matrix, int64_t columns, int64_t width, DType dtype, void* packed,
                 int num_threads, Isa isa);
void multiply(const ProductParams& params, int num_threads, Isa isa);

}  // namespace allot::kernels::cpu
