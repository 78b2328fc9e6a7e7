// Row operations of a decoder layer on the CPU: everything between the matrix products and attention, fused
// where that saves a pass over memory. Raw pointers, no LibTorch. Storage is float32 or bfloat16, arithmetic
// is float32 and each result is rounded once when it is stored (round to nearest even). Every row is computed
// by itself, so results do not depend on the other rows or on num_threads. Buffers need no alignment beyond
// that of their element. All functions throw InvalidArgument, naming the operation, the value and what was
// expected; nothing is written in that case.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/estimator.h"

namespace allot::kernels {

// Rows of smaller numbers than this are rounded as if it were the largest (RmsNormParams::int8_grid).
inline constexpr float kLeastInt8Range = 1e-5f;

// x = input, or, with a residual, residual = input + residual (rounded to dtype) and x = residual;
// out = x / sqrt(mean(x^2) + epsilon) * weight. With int8_grid the row that this gives, y, is rounded to the
// multiples of its largest absolute value that eight bits hold, as a BitLinear does with its input
// (transformers' AutoBitLinear): out = round(y * s) / s with s = 127 / max(|y|, 1e-5), ties to even.
struct RmsNormParams {
  int64_t rows = 0;
  int32_t width = 0;              // hidden size, any positive number
  DType dtype = DType::kFloat32;  // of input, residual, weight and out
  float epsilon = 0;
  const void* input = nullptr;   // [rows, width]
  void* residual = nullptr;      // [rows, width], updated in place; null = none; must not overlap out
  const void* weight = nullptr;  // [width]
  void* out = nullptr;           // [rows, width]; may be input
  bool int8_grid = false;
};
void rms_norm(const RmsNormParams& params, int num_threads);

// Planes of split keys and queries (split_keys.h) that rotate_and_store_cuda writes.
struct RotaryPlanes {
  void* high = nullptr;          // as SplitKeys::high
  int8_t* low = nullptr;         // as SplitKeys::low; null = not stored
  int8_t* query = nullptr;       // as SplitKeys::query; null = not written
  float* query_units = nullptr;  // as SplitKeys::query_units; null unless `query` is set
};

// Rotary position embedding in Hugging Face's half-split convention on a fused projection, after an RMS norm
// of each query and key head where the model has one (Qwen3), and the paged cache write:
//   with a norm, per head:             y = x / sqrt(mean(x^2) + norm_epsilon), rounded to dtype
//                                      x = y * weight, rounded to dtype
//   q and k, with j = i + head_dim/2:  x[i] = x[i] cos[i] - x[j] sin[i]
//                                      x[j] = x[j] cos[i] + x[i] sin[i]
// The two roundings of the norm are those of transformers' Qwen3RMSNorm: its heads are tensors of their own.
// q is rotated in place (attention then reads it with query_stride = qkv_stride), rotated k and v go to the
// cache; the k and v parts of qkv are left as they were.
struct RotaryParams {
  int64_t tokens = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;           // even
  DType dtype = DType::kFloat32;  // of qkv, bias, norm weights and pages
  void* qkv = nullptr;     // [tokens, (num_q_heads + 2 num_kv_heads) * head_dim]: q heads, k heads, v heads
  int64_t qkv_stride = 0;  // elements between tokens; >= (num_q_heads + 2 num_kv_heads) * head_dim
  // [(num_q_heads + 2 num_kv_heads) * head_dim], added before norm and rotation; null = none
  const void* bias = nullptr;
  const void* q_norm = nullptr;  // [head_dim], RMS norm of every query head before the rotation; null = none
  const void* k_norm = nullptr;  // [head_dim], the same of every key head; null = none
  float norm_epsilon = 0;        // of both norms, >= 0
  const float* cos = nullptr;    // [table_rows, head_dim / 2] float32, any rope scaling included
  const float* sin = nullptr;    // [table_rows, head_dim / 2] float32
  int64_t table_rows = 0;
  const int32_t* positions = nullptr;  // [tokens] row of the table, 0 <= position < table_rows
  void* key_pages = nullptr;           // [num_pages, num_kv_heads, page_size, head_dim]
  // On CUDA only. Where planes.high is set keys go there in place of key_pages: what store_split_keys makes
  // of the rotated keys, rounded to dtype, to the bit. Queries are rotated in place as ever, and split, too,
  // where planes.query is set: what split_queries makes of them.
  RotaryPlanes planes = {};
  void* value_pages = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim]
  // [num_pages, num_kv_heads, page_size] float32 norms of the values as they are stored; null = not written
  float* value_norms = nullptr;
  int64_t num_pages = 0;
  int32_t page_size = 0;
  const int64_t* slots = nullptr;  // [tokens] page * page_size + offset in the page; distinct
  // On CUDA only: positions, slots, cos and sin were written by work that had ended before any kernel began
  // that can still run when this launch starts. They are then read while the kernels before it end.
  bool settled_places = false;
};
void rotate_and_store(const RotaryParams& params, int num_threads);

// The norms that rotate_and_store writes, for caches that other code writes: value_norms of slot s and KV
// head h is the root of the sum of the squares of values[token, h], in float32.
struct ValueNormsParams {
  int64_t tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  DType dtype = DType::kFloat32;  // of values
  const void* values = nullptr;  // [tokens, num_kv_heads, head_dim], the heads of a token one after the other
  int64_t value_stride = 0;      // elements between tokens; >= num_kv_heads * head_dim
  float* value_norms = nullptr;  // [num_pages, num_kv_heads, page_size]
  int64_t num_pages = 0;
  int32_t page_size = 0;
  const int64_t* slots = nullptr;  // [tokens] page * page_size + offset in the page; negative: not stored
};
void store_value_norms(const ValueNormsParams& params, int num_threads);

// out = activation(gate) * up.
struct ActivateAndMultiplyParams {
  int64_t rows = 0;
  int32_t width = 0;              // intermediate size
  DType dtype = DType::kFloat32;  // of gate_up and out
  Activation activation = Activation::kSilu;
  const void* gate_up = nullptr;  // [rows, 2 * width]: gate, then up
  void* out = nullptr;            // [rows, width]; must not overlap gate_up
};
void activate_and_multiply(const ActivateAndMultiplyParams& params, int num_threads);

// out[i] = table[ids[i]].
struct EmbeddingParams {
  int64_t tokens = 0;
  int32_t width = 0;              // hidden size
  int64_t vocab_size = 0;         // rows of table
  DType dtype = DType::kFloat32;  // of table and out
  const void* table = nullptr;    // [vocab_size, width]
  const int32_t* ids = nullptr;   // [tokens], 0 <= id < vocab_size
  void* out = nullptr;            // [tokens, width]
};
void gather_embeddings(const EmbeddingParams& params, int num_threads);

// How the next-token distribution that a row of logits stands for diverges from that of another row.
struct RowDivergence {
  float divergence = 0;  // nats, >= 0; exactly 0 for equal rows, not finite where a logit is not
  int32_t same_top = 0;  // 1 where both rows have their largest logit, the first on a tie, at the same place
};

// KL(dense || sampled) = sum of p (log p - log q), with p = softmax(dense) and q = softmax(sampled). It is
// computed as the sum of p (exp(-t) - 1 + t) with t = log p - log q, the same number because p and q sum to
// 1: no term is negative, so small divergences do not drown in the rounding of large terms, and an error in
// the normalisation of p and q counts squared. Sums of terms are double.
struct DivergenceParams {
  int64_t rows = 0;
  int32_t vocab_size = 0;
  DType dtype = DType::kFloat32;  // of the logits
  int64_t stride = 0;             // elements between rows of logits; >= vocab_size
  const void* dense = nullptr;    // [rows, vocab_size]
  const void* sampled = nullptr;  // [rows, vocab_size]
  RowDivergence* out = nullptr;   // [rows]
};
void row_divergence(const DivergenceParams& params, int num_threads);

}  // namespace allot::kernels
