#include "kernels/row_checks.h"

namespace allot::kernels {

RowCheck check_fields(const RmsNormParams& p, const RowPlace& place) {
  const RowCheck check("rms_norm", place);
  check.rows("rows", p.rows);
  check.size("width", p.width, 1);
  check.epsilon("epsilon", p.epsilon);
  if (p.rows > 0) check.pointers({{"input", p.input}, {"weight", p.weight}, {"out", p.out}});
  return check;
}

RowCheck check_fields(const RotaryParams& p, const RowPlace& place) {
  const RowCheck check("rotate_and_store", place);
  check.rows("tokens", p.tokens);
  check.size("num_q_heads", p.num_q_heads, 1);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check.size("head_dim", p.head_dim, 2);
  if (p.head_dim % 2 != 0) check.refuse("head_dim is {}; expected an even number", p.head_dim);
  check.size("page_size", p.page_size, 1);
  check.size("qkv_stride", p.qkv_stride, (int64_t{p.num_q_heads} + 2 * int64_t{p.num_kv_heads}) * p.head_dim);
  check.epsilon("norm_epsilon", p.norm_epsilon);
  if (p.tokens > 0) {
    check.pointers({{"qkv", p.qkv},
                    {"cos", p.cos},
                    {"sin", p.sin},
                    {"positions", p.positions},
                    {"value_pages", p.value_pages},
                    {"slots", p.slots}});
    if (p.planes.high == nullptr) check.pointers({{"key_pages", p.key_pages}});
  }
  return check;
}

RowCheck check_fields(const ValueNormsParams& p, const RowPlace& place) {
  const RowCheck check("store_value_norms", place);
  check.rows("tokens", p.tokens);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check.size("head_dim", p.head_dim, 1);
  check.size("page_size", p.page_size, 1);
  check.size("value_stride", p.value_stride, int64_t{p.num_kv_heads} * p.head_dim);
  if (p.tokens > 0)
    check.pointers({{"values", p.values}, {"value_norms", p.value_norms}, {"slots", p.slots}});
  return check;
}

RowCheck check_fields(const ActivateAndMultiplyParams& p, const RowPlace& place) {
  const RowCheck check("activate_and_multiply", place);
  check.rows("rows", p.rows);
  check.size("width", p.width, 1, place.most_width);
  if (p.rows > 0) check.pointers({{"gate_up", p.gate_up}, {"out", p.out}});
  return check;
}

RowCheck check_fields(const EmbeddingParams& p, const RowPlace& place) {
  const RowCheck check("gather_embeddings", place);
  check.rows("tokens", p.tokens);
  check.size("width", p.width, 1);
  if (p.tokens > 0) check.pointers({{"table", p.table}, {"ids", p.ids}, {"out", p.out}});
  return check;
}

RowCheck check_fields(const DivergenceParams& p, const RowPlace& place) {
  const RowCheck check("row_divergence", place);
  check.rows("rows", p.rows);
  check.size("vocab_size", p.vocab_size, 1);
  check.size("stride", p.stride, p.vocab_size);
  if (p.rows > 0) check.pointers({{"dense", p.dense}, {"sampled", p.sampled}, {"out", p.out}});
  return check;
}

namespace {

void check_head_dim(const RowCheck& check, int32_t head_dim) {
  if (!can_split(head_dim)) check.refuse("head_dim is {}; expected a power of two from 8 to 256", head_dim);
}

}  // namespace

void check_split_pages(const RowCheck& check, int32_t page_size) {
  if (page_size < kSplitBlockKeys || page_size % kSplitBlockKeys != 0)
    check.refuse("page_size is {}; expected a multiple of {}", page_size, kSplitBlockKeys);
}

RowCheck check_fields(const StoreSplitKeysParams& p, const RowPlace& place) {
  const RowCheck check("store_split_keys", place);
  check.rows("tokens", p.tokens);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check_head_dim(check, p.head_dim);
  check_split_pages(check, p.page_size);
  check.size("key_stride", p.key_stride, int64_t{p.num_kv_heads} * p.head_dim);
  if (p.tokens > 0) check.pointers({{"keys", p.keys}, {"high", p.high}, {"slots", p.slots}});
  return check;
}

RowCheck check_fields(const SplitQueriesParams& p, const RowPlace& place) {
  const RowCheck check("split_queries", place);
  check.rows("tokens", p.tokens);
  check.size("num_q_heads", p.num_q_heads, 1);
  check_head_dim(check, p.head_dim);
  check.size("query_stride", p.query_stride, int64_t{p.num_q_heads} * p.head_dim);
  if (p.tokens > 0) check.pointers({{"queries", p.queries}, {"planes", p.planes}, {"units", p.units}});
  return check;
}

RowCheck check_fields(const QuantizeRowsParams& p, const RowPlace& place) {
  const RowCheck check("quantize_rows", place);
  check.rows("rows", p.rows);
  check.size("width", p.width, 1);
  if (p.rows > 0) check.pointers({{"input", p.input}, {"out", p.out}, {"scales", p.scales}});
  return check;
}

}  // namespace allot::kernels
