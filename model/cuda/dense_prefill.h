// Exact attention of many new tokens a sequence on a CUDA device, by the FlashAttention that comes with
// LibTorch: for long prompts, where matrix products and not reads of the cache take the time. It reads
// contiguous keys; gather_cache_cuda (kernels/rows_cuda.h) copies pages into that form. Not for decode, nor
// for graphs: LibTorch allocates memory while it queues. No LibTorch type appears here.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"

namespace allot::model::cuda {

// Pointers are device memory, all but the two arrays of int32 aligned to 16 bytes. Sequence b has the queries
// cum_queries[b] .. cum_queries[b + 1) and the keys cum_keys[b] .. cum_keys[b + 1), at least as many. Its
// last query sees all of them, the one before it one less, and so on (causal).
struct DensePrefillParams {
  int64_t sequences = 0;    // >= 1
  int64_t tokens = 0;       // new tokens of all sequences: cum_queries[sequences], >= 1
  int64_t total_keys = 0;   // at least cum_keys[sequences]
  int32_t max_queries = 0;  // no sequence has more queries
  int32_t max_keys = 0;     // no sequence has more keys
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_q_heads; query head h reads KV head h / (q heads / KV heads)
  int32_t head_dim = 0;      // multiple of 8, at most 256
  kernels::DType dtype = kernels::DType::kBFloat16;  // or float16; sums are float32
  float scale = 0;                                   // of the scores, usually 1 / sqrt(head_dim)
  const void* query = nullptr;                       // [tokens, num_q_heads, head_dim], by query_stride
  int64_t query_stride = 0;      // elements between tokens, >= num_q_heads * head_dim, a multiple of 8
  const void* keys = nullptr;    // [total_keys, num_kv_heads, head_dim]
  const void* values = nullptr;  // [total_keys, num_kv_heads, head_dim]
  const int32_t* cum_queries = nullptr;  // [sequences + 1] from 0, never falling
  const int32_t* cum_keys = nullptr;     // [sequences + 1] from 0, never falling
  void* out = nullptr;                   // [tokens, num_q_heads, head_dim]; overlaps no other array
};

// Throws InvalidArgument naming field, value and what was expected, Unsupported for float32 and for
// dimensions of a head that FlashAttention does not support. Pointers are not dereferenced.
void validate(const DensePrefillParams& params);

class DensePrefill {
 public:
  // Loads LibTorch's CUDA part for a device by its ordinal. The first load of a process takes time and device
  // memory (dense_prefill_bench prints how much). Throws NotFound when a library is missing, CudaError when
  // LibTorch finds no such device.
  static std::unique_ptr<DensePrefill> load(int device);

  // Queues the attention on `stream`, a stream of this device, which is LibTorch's current one on the calling
  // thread meanwhile. Waits for the device only where LibTorch has to allocate memory: for a second output
  // and 4 bytes a token and query head, which it keeps for later calls on the same stream until
  // release_memory(). Several threads may call at once. Deterministic: every row is computed by itself and in
  // a fixed order. Throws as validate() does, CudaError with LibTorch's reason when it refuses.
  void attend(const DensePrefillParams& params, kernels::CudaStream stream) const;

  // Frees the memory that LibTorch keeps on every device, once the kernels that use it have run: may wait
  // for the device.
  void release_memory() const;

 private:
  explicit DensePrefill(int device) : device_(device) {}

  int device_;
};

}  // namespace allot::model::cuda
