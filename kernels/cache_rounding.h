// What a KV cache of fewer bits leaves of keys and values, written back as numbers of the cache's dtype: a
// simulation, which shows what a format costs in quality and saves neither memory nor time. Queries and
// probabilities keep the dtype, which kernels over 8-bit caches may round as well.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cache_format.h"
#include "kernels/estimator.h"

namespace allot::kernels {

// Rounds a row in place, in float32; the functions of fp8.h and split_keys.h say how. kDtype leaves it as it
// is. A row with an element that is not finite becomes NaN in every format with a scale or unit; without one
// an infinity becomes the largest number of 8 bits. Split formats are for sizes that can_split().
void round_row(std::span<float> row, CacheFormat format);

// Rounds the keys and values of `tokens` tokens where they lie in the cache, and computes the norms of
// values that were rounded again.
struct RoundCacheParams {
  int64_t tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;  // of the pages: float32 or bfloat16
  CacheFormats formats = {};
  void* key_pages = nullptr;     // [num_pages, num_kv_heads, page_size, head_dim]
  void* value_pages = nullptr;   // [num_pages, num_kv_heads, page_size, head_dim]
  float* value_norms = nullptr;  // [num_pages, num_kv_heads, page_size], as rotate_and_store has them
  int64_t num_pages = 0;
  int32_t page_size = 0;
  const int64_t* slots = nullptr;  // [tokens] page * page_size + offset in the page; distinct
};
// Throws InvalidArgument naming the field for null pointers, sizes below 1, float16, a slot beyond the pages
// and heads that cannot be split where a format splits them; nothing is written in that case.
void round_cache(const RoundCacheParams& params);

}  // namespace allot::kernels
