// The row operations of rows.h on a CUDA GPU: the same parameter structs with every pointer in device memory,
// the same formulas, float32 arithmetic, one rounding when a result is stored. Storage is float32, bfloat16
// or float16. Raw pointers, no LibTorch.
//
// Each call queues one kernel on `stream`. It allocates nothing, never waits for the device and may be
// captured in a CUDA graph. On compute capability 9.0 and newer a kernel starts while its predecessor in the
// stream ends (programmatic dependent launch) and waits for it before it touches memory, so that a chain of
// small kernels does not pay each one's start.
//
// Widths, pointers and strides may be anything; where they are multiples of 16 bytes memory is accessed 16
// bytes at a time, several times as fast.
//
// Every row is computed by itself and in a fixed order: a result depends neither on the other rows nor on
// their number. Against the CPU: gather_embeddings_cuda, gather_rows_cuda, the residual stream of
// rms_norm_cuda and values (without a bias or with one) are equal to the bit; out of rms_norm_cuda,
// rotated queries and keys and activate_and_multiply_cuda differ by float32 rounding before the result is
// rounded (another order of the sum of squares, fused multiply-adds, another exponential), in bfloat16 at
// most the last bit, and with int8_grid by a step of the grid where that rounding decides between two.
//
// The host cannot see the content of device arrays. A padding row (a decode step captured for more rows than
// are live) is marked by a negative slot or id; see each function. An entry that is out of range otherwise
// makes the row's results NaN, so that the token sampler reports it (token_sampler_cuda.h).
//
// All functions throw InvalidArgument as in rows.h before anything is queued, CudaError when the
// launch is refused.
#pragma once

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/rows.h"

namespace allot::kernels {

void rms_norm_cuda(const RmsNormParams& params, const DeviceLimits& limits, CudaStream stream);

// slots[token] < 0: a padding row; nothing of it is read or written, not even its query. A position outside
// the tables or a slot outside the pool: the token's query becomes NaN and nothing is stored in the cache.
// With planes: head_dim 64 or 128, bfloat16 or float16; all pointers and the stride in multiples of 16 bytes.
void rotate_and_store_cuda(const RotaryParams& params, const DeviceLimits& limits, CudaStream stream);

// A slot outside the pool: nothing is stored.
void store_value_norms_cuda(const ValueNormsParams& params, const DeviceLimits& limits, CudaStream stream);

// Equal to the CPU's to the bit. head_dim 64 or 128, bfloat16 or float16; vectors, planes and strides in
// multiples of 16 bytes. A slot outside the pool: nothing is stored.
void store_split_keys_cuda(const StoreSplitKeysParams& params, const DeviceLimits& limits, CudaStream stream);
void split_queries_cuda(const SplitQueriesParams& params, const DeviceLimits& limits, CudaStream stream);

// Keys of sequences from their planes to 16-bit pages of the same numbers, for kernels that read such. The
// rotation is undone in whole numbers, and a key's elements are rounded once to float32 and once to dtype.
struct RestoreSplitKeysParams {
  int64_t sequences = 0;  // at most kMaxCudaBatch
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;                 // 64 or 128
  int32_t page_size = 0;                // tokens a page holds, a multiple of kSplitBlockKeys
  int32_t max_pages = 0;                // row length of page_table
  int64_t num_pages = 0;                // pages in the pool
  DType dtype = DType::kBFloat16;       // of key_pages; or float16
  const void* high = nullptr;           // as SplitKeys::high
  const int8_t* low = nullptr;          // as SplitKeys::low; null: its elements count as 0
  const int32_t* page_table = nullptr;  // [sequences, max_pages]; pages outside the pool are left out
  const int32_t* lengths = nullptr;     // [sequences] keys of each
  // [sequences] only sequences whose budget is kDenseBudget are restored; null = all are.
  const int32_t* budgets = nullptr;
  void* key_pages = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim], aligned to 16 bytes
};
void restore_split_keys_cuda(const RestoreSplitKeysParams& params, const DeviceLimits& limits,
                             CudaStream stream);

void activate_and_multiply_cuda(const ActivateAndMultiplyParams& params, const DeviceLimits& limits,
                                CudaStream stream);

// ids[token] < 0: a padding row, filled with zeros. An id of vocab_size or more: a row of NaN.
void gather_embeddings_cuda(const EmbeddingParams& params, const DeviceLimits& limits, CudaStream stream);

// out[i] = source[indices[i]], with indices as ids in gather_embeddings_cuda.
struct GatherRowsParams {
  int64_t rows = 0;  // of out
  int32_t width = 0;
  int64_t source_rows = 0;
  DType dtype = DType::kFloat32;     // of source and out
  const void* source = nullptr;      // [source_rows, width]
  const int32_t* indices = nullptr;  // [rows]
  void* out = nullptr;               // [rows, width]; must not overlap source
};
void gather_rows_cuda(const GatherRowsParams& params, const DeviceLimits& limits, CudaStream stream);

// Keys and values of sequences, from the pages of a cache (attention.h) to contiguous rows, as attention
// kernels of libraries need them. Sequence b has cum_keys[b + 1] - cum_keys[b] keys, at most max_pages *
// page_size, and its key i becomes row cum_keys[b] + i.
struct GatherCacheParams {
  int64_t sequences = 0;
  int64_t total_keys = 0;  // at least cum_keys[sequences]; rows from there on are not written
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;  // tokens a page holds
  int32_t max_pages = 0;  // row length of page_table
  int64_t num_pages = 0;  // pages in the pool
  DType dtype = DType::kBFloat16;
  const void* key_pages = nullptr;      // [num_pages, num_kv_heads, page_size, head_dim]
  const void* value_pages = nullptr;    // [num_pages, num_kv_heads, page_size, head_dim]
  const int32_t* page_table = nullptr;  // [sequences, max_pages] page of each block of page_size tokens
  const int32_t* cum_keys = nullptr;    // [sequences + 1] from 0, never falling
  void* keys = nullptr;                 // [total_keys, num_kv_heads, head_dim]; must not overlap the pages
  void* values = nullptr;               // [total_keys, num_kv_heads, head_dim]; must not overlap the pages
};
// Copies bits. A page outside the pool, or a key beyond max_pages: a row of NaN.
void gather_cache_cuda(const GatherCacheParams& params, const DeviceLimits& limits, CudaStream stream);

// Differs from the CPU by the rounding of exponentials and of sums.
void row_divergence_cuda(const DivergenceParams& params, const DeviceLimits& limits, CudaStream stream);

}  // namespace allot::kernels
