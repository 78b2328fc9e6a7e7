#include "kernels/cuda/rows/validate_rows.h"

#include <cstdint>

#include "kernels/cuda/rows/refuse.h"

namespace allot::kernels::cuda {
namespace {

// Rows are the x dimension of a grid.
constexpr int64_t kMaxRowsOfGrid = INT32_MAX;
// 256 elements or more a block, whose number is the y dimension.
constexpr int64_t kMaxSiluWidth = 65535 * 256;
// Elements that a block of gather_cache copies are counted in 32 bits.
constexpr int64_t kMaxWidthOfKey = int64_t{1} << 24;

void check_size(const char* operation, const char* field, int64_t value, int64_t least) {
  if (value < least) refuse(operation, "{} is {}; expected at least {}", field, value, least);
}

void check_rows(const char* operation, const char* field, int64_t value) {
  if (value < 0 || value > kMaxRowsOfGrid) {
    refuse(operation, "{} is {}; expected 0 to {}", field, value, kMaxRowsOfGrid);
  }
}

void check_epsilon(const char* operation, const char* field, float epsilon) {
  if (!(epsilon >= 0)) refuse(operation, "{} is {}; expected 0 or more", field, epsilon);
}

}  // namespace

void check(const RmsNormParams& p) {
  constexpr const char* kName = "rms_norm on CUDA";
  check_rows(kName, "rows", p.rows);
  check_size(kName, "width", p.width, 1);
  check_epsilon(kName, "epsilon", p.epsilon);
  if (p.rows == 0) return;
  check_pointer(kName, "input", p.input);
  check_pointer(kName, "weight", p.weight);
  check_pointer(kName, "out", p.out);
}

void check(const RotaryParams& p) {
  constexpr const char* kName = "rotate_and_store on CUDA";
  check_rows(kName, "tokens", p.tokens);
  check_size(kName, "num_q_heads", p.num_q_heads, 1);
  check_size(kName, "num_kv_heads", p.num_kv_heads, 1);
  check_size(kName, "head_dim", p.head_dim, 2);
  if (p.head_dim % 2 != 0) refuse(kName, "head_dim is {}; expected an even number", p.head_dim);
  check_size(kName, "page_size", p.page_size, 1);
  check_size(kName, "qkv_stride", p.qkv_stride,
             (int64_t{p.num_q_heads} + 2 * int64_t{p.num_kv_heads}) * p.head_dim);
  check_epsilon(kName, "norm_epsilon", p.norm_epsilon);
  if (p.tokens == 0) return;
  if (p.num_pages < 0 || p.num_pages > int64_t{UINT32_MAX} / p.page_size) {
    refuse(kName, "the pool has {} pages of {} tokens; expected 0 to {} pages", p.num_pages, p.page_size,
           UINT32_MAX / p.page_size);
  }
  check_pointer(kName, "qkv", p.qkv);
  check_pointer(kName, "cos", p.cos);
  check_pointer(kName, "sin", p.sin);
  check_pointer(kName, "positions", p.positions);
  check_pointer(kName, "key_pages", p.key_pages);
  check_pointer(kName, "value_pages", p.value_pages);
  check_pointer(kName, "slots", p.slots);
}

void check(const SiluAndMultiplyParams& p) {
  constexpr const char* kName = "silu_and_multiply on CUDA";
  check_rows(kName, "rows", p.rows);
  if (p.width < 1 || p.width > kMaxSiluWidth) {
    refuse(kName, "width is {}; expected 1 to {}", p.width, kMaxSiluWidth);
  }
  if (p.rows == 0) return;
  check_pointer(kName, "gate_up", p.gate_up);
  check_pointer(kName, "out", p.out);
}

void check(const EmbeddingParams& p) {
  constexpr const char* kName = "gather_embeddings on CUDA";
  check_rows(kName, "tokens", p.tokens);
  check_size(kName, "width", p.width, 1);
  check_size(kName, "vocab_size", p.vocab_size, 1);
  if (p.tokens == 0) return;
  check_pointer(kName, "table", p.table);
  check_pointer(kName, "ids", p.ids);
  check_pointer(kName, "out", p.out);
}

void check(const GatherRowsParams& p) {
  constexpr const char* kName = "gather_rows on CUDA";
  check_rows(kName, "rows", p.rows);
  check_size(kName, "width", p.width, 1);
  check_size(kName, "source_rows", p.source_rows, 1);
  if (p.rows == 0) return;
  check_pointer(kName, "source", p.source);
  check_pointer(kName, "indices", p.indices);
  check_pointer(kName, "out", p.out);
}

void check(const GatherCacheParams& p) {
  constexpr const char* kName = "gather_cache on CUDA";
  check_rows(kName, "sequences", p.sequences);
  check_rows(kName, "total_keys", p.total_keys);
  check_size(kName, "num_kv_heads", p.num_kv_heads, 1);
  check_size(kName, "head_dim", p.head_dim, 1);
  check_size(kName, "page_size", p.page_size, 1);
  check_size(kName, "max_pages", p.max_pages, 1);
  if (int64_t{p.num_kv_heads} * p.head_dim > kMaxWidthOfKey) {
    refuse(kName, "a key has {} heads of {} elements; expected at most {} elements", p.num_kv_heads,
           p.head_dim, kMaxWidthOfKey);
  }
  if (p.sequences == 0 || p.total_keys == 0) return;
  if (p.num_pages < 0 || p.num_pages > INT32_MAX) {
    refuse(kName, "the pool has {} pages; expected 0 to {}", p.num_pages, INT32_MAX);
  }
  check_pointer(kName, "key_pages", p.key_pages);
  check_pointer(kName, "value_pages", p.value_pages);
  check_pointer(kName, "page_table", p.page_table);
  check_pointer(kName, "cum_keys", p.cum_keys);
  check_pointer(kName, "keys", p.keys);
  check_pointer(kName, "values", p.values);
}

void check(const MatvecParams& p) {
  constexpr const char* kName = "matvec on CUDA";
  if (p.rows < 0 || p.rows > kMaxMatvecRows) {
    refuse(kName, "rows is {}; expected 0 to {}", p.rows, kMaxMatvecRows);
  }
  check_size(kName, "out_features", p.out_features, 1);
  if (p.in_features < 8 || p.in_features % 8 != 0) {
    refuse(kName, "in_features is {}; expected a multiple of 8, at least 8", p.in_features);
  }
  if (p.dtype != DType::kBFloat16 && p.dtype != DType::kFloat16) {
    refuse(kName, "dtype is {}; expected bfloat16 or float16", name(p.dtype));
  }
  check_size(kName, "out_stride", p.out_stride, p.out_features);
  if (p.rows == 0) return;
  const auto check_vectors = [&](const char* field, const void* pointer) {
    check_pointer(kName, field, pointer);
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) {
      refuse(kName, "{} is at {}; expected a multiple of 16 bytes", field, pointer);
    }
  };
  check_vectors("input", p.input);
  check_vectors("weight", p.weight);
  check_pointer(kName, "out", p.out);
}

}  // namespace allot::kernels::cuda
