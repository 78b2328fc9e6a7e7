#include "kernels/cuda/rows/validate_rows.h"

#include <cstdint>
#include <string>

#include "kernels/cuda/rows/place.h"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/row_checks.h"

namespace allot::kernels::cuda {
namespace {

// Elements that a block of gather_cache copies are counted in 32 bits.
constexpr int64_t kMaxWidthOfKey = int64_t{1} << 24;

// Slots are counted in 32 bits.
template <class Params>
RowCheck check_pool(const Params& p) {
  const RowCheck check = check_fields(p, kPlace);
  if (p.tokens > 0 && (p.num_pages < 0 || p.num_pages > int64_t{UINT32_MAX} / p.page_size)) {
    check.refuse("the pool has {} pages of {} tokens; expected 0 to {} pages", p.num_pages, p.page_size,
                 UINT32_MAX / p.page_size);
  }
  return check;
}

// Of operations on elements of 16 bits alone.
void check_sixteen_bits(const RowCheck& check, DType dtype) {
  if (dtype != DType::kBFloat16 && dtype != DType::kFloat16)
    check.refuse("dtype is {}; expected bfloat16 or float16", name(dtype));
}

// Of the operations on split keys: what has a kernel.
void check_split_kernel(const RowCheck& check, DType dtype, int32_t head_dim, int64_t stride) {
  check_sixteen_bits(check, dtype);
  if (head_dim != 64 && head_dim != 128) check.refuse("head_dim is {}; expected 64 or 128", head_dim);
  if (stride % 8 != 0) check.refuse("a token's stride is {} elements; expected a multiple of 8", stride);
}

// Of operations whose result is quantised: `p` is checked with its place as that of the result.
template <class Params>
void check_quantized(Params p, const QuantizedRows& out,
                     std::initializer_list<std::pair<const char*, const void*>> inputs) {
  p.out = out.elements;
  const RowCheck check = check_fields(p, kPlace);
  if (p.dtype != DType::kBFloat16)
    check.refuse("dtype is {}; rows of 8 bits are made of bfloat16", name(p.dtype));
  if (p.width % 16 != 0) check.refuse("width is {}; rows of 8 bits need a multiple of 16", p.width);
  if (p.rows == 0) return;
  check.pointers({{"scales", out.scales}});
  check_alignment(check, inputs);
  check_alignment(check, {{"elements", out.elements}});
}

// What both sums over GPUs require; they are read 8 bytes at a time.
RowCheck check_ranks(const PeerSumParams& p) {
  const RowCheck check("peer_sum", kPlace);
  if (p.rank < 0 || p.rank >= p.ranks) check.refuse("rank is {} of {}", p.rank, p.ranks);
  check.pointers({{"stop", p.stop}});
  check_alignment(check, {{"stop", p.stop}}, sizeof(uint32_t));
  for (int32_t rank = 0; rank < p.ranks; ++rank) {
    const std::string field = "mailbox of rank " + std::to_string(rank);
    check.pointers({{field.c_str(), p.mailboxes[rank]}});
    check_alignment(check, {{field.c_str(), p.mailboxes[rank]}}, 256);
  }
  return check;
}

}  // namespace

void check(const RmsNormParams& p) {
  check_fields(p, kPlace);
}

void check(const RotaryParams& p) {
  const RowCheck check = check_pool(p);
  const RotaryPlanes& planes = p.planes;
  if (planes.high == nullptr && (planes.low != nullptr || planes.query != nullptr))
    check.refuse("planes.low or planes.query is set without planes.high");
  if (planes.high == nullptr) return;
  check_split_kernel(check, p.dtype, p.head_dim, p.qkv_stride);
  check_split_pages(check, p.page_size);
  check_alignment(check, {{"qkv", p.qkv},
                          {"bias", p.bias},
                          {"q_norm", p.q_norm},
                          {"k_norm", p.k_norm},
                          {"cos", p.cos},
                          {"sin", p.sin},
                          {"value_pages", p.value_pages},
                          {"planes.high", planes.high},
                          {"planes.low", planes.low},
                          {"planes.query", planes.query}});
  if (p.tokens > 0 && planes.query != nullptr) check.pointers({{"planes.query_units", planes.query_units}});
}

void check(const ValueNormsParams& p) {
  check_pool(p);
}

void check(const ActivateAndMultiplyParams& p) {
  check_fields(p, kPlace);
}

void check(const EmbeddingParams& p) {
  RowCheck("gather_embeddings", kPlace).size("vocab_size", p.vocab_size, 1);
  check_fields(p, kPlace);
}

void check(const GatherRowsParams& p) {
  const RowCheck check("gather_rows", kPlace);
  check.rows("rows", p.rows);
  check.size("width", p.width, 1);
  check.size("source_rows", p.source_rows, 1);
  if (p.rows > 0) check.pointers({{"source", p.source}, {"indices", p.indices}, {"out", p.out}});
}

void check(const GatherCacheParams& p) {
  const RowCheck check("gather_cache", kPlace);
  check.rows("sequences", p.sequences);
  check.rows("total_keys", p.total_keys);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check.size("head_dim", p.head_dim, 1);
  check.size("page_size", p.page_size, 1);
  check.size("max_pages", p.max_pages, 1);
  if (int64_t{p.num_kv_heads} * p.head_dim > kMaxWidthOfKey) {
    check.refuse("a key has {} heads of {} elements; expected at most {} elements", p.num_kv_heads,
                 p.head_dim, kMaxWidthOfKey);
  }
  if (p.sequences == 0 || p.total_keys == 0) return;
  if (p.num_pages < 0 || p.num_pages > INT32_MAX) {
    check.refuse("the pool has {} pages; expected 0 to {}", p.num_pages, INT32_MAX);
  }
  check.pointers({{"key_pages", p.key_pages},
                  {"value_pages", p.value_pages},
                  {"page_table", p.page_table},
                  {"cum_keys", p.cum_keys},
                  {"keys", p.keys},
                  {"values", p.values}});
}

void check(const DivergenceParams& p) {
  RowCheck("row_divergence", kPlace).size("vocab_size", p.vocab_size, 1, kMaxVocabulary);
  check_fields(p, kPlace);
}

void check(const MatvecParams& p) {
  const RowCheck check("matvec", kPlace);
  check.size("rows", p.rows, 0, kMaxMatvecRows);
  check.size("out_features", p.out_features, 1);
  if (p.in_features < 8 || p.in_features % 8 != 0) {
    check.refuse("in_features is {}; expected a multiple of 8, at least 8", p.in_features);
  }
  check_sixteen_bits(check, p.dtype);
  check.size("out_stride", p.out_stride, p.out_features);
  if (p.rows == 0) return;
  check.pointers({{"input", p.input}, {"weight", p.weight}, {"out", p.out}});
  check_alignment(check, {{"input", p.input}, {"weight", p.weight}});
}

void check(const QuantizeRowsParams& p) {
  check_fields(p, kPlace);
}

void check(const RmsNormParams& p, const QuantizedRows& out) {
  check_quantized(p, out, {{"input", p.input}, {"residual", p.residual}, {"weight", p.weight}});
  if (p.int8_grid)
    RowCheck("rms_norm", kPlace).refuse("int8_grid is set; rows of 8 bits have a scale instead");
}

void check(const ActivateAndMultiplyParams& p, const QuantizedRows& out) {
  check_quantized(p, out, {{"gate_up", p.gate_up}});
}

void check(const Fp8MatvecParams& p) {
  const RowCheck check("fp8_matvec", kPlace);
  check.size("rows", p.rows, 0, kMaxFp8MatvecRows);
  check.size("out_features", p.out_features, 1);
  if (p.in_features < 16 || p.in_features % 16 != 0) {
    check.refuse("in_features is {}; expected a multiple of 16, at least 16", p.in_features);
  }
  check.size("out_stride", p.out_stride, p.out_features);
  if (p.rows == 0) return;
  check.pointers(
      {{"input", p.input}, {"weight", p.weight}, {"weight_scales", p.weight_scales}, {"out", p.out}});
  check_alignment(check, {{"input", p.input}, {"weight", p.weight}});
}

void check(const ScaleProductParams& p) {
  const RowCheck check("scale_product", kPlace);
  check.rows("rows", p.rows);
  check.size("out_features", p.out_features, 1);
  check.size("out_stride", p.out_stride, p.out_features);
  if (p.rows == 0) return;
  check.pointers({{"input_scales", p.input_scales}, {"weight_scales", p.weight_scales}, {"out", p.out}});
}

void check(const StoreSplitKeysParams& p) {
  const RowCheck check = check_pool(p);
  check_split_kernel(check, p.dtype, p.head_dim, p.key_stride);
  check_alignment(check, {{"keys", p.keys}, {"high", p.high}, {"low", p.low}});
}

void check(const RestoreSplitKeysParams& p) {
  const RowCheck check("restore_split_keys", kPlace);
  check.size("sequences", p.sequences, 0, kMaxCudaBatch);
  check.size("num_kv_heads", p.num_kv_heads, 1);
  check.size("max_pages", p.max_pages, 1);
  check_split_kernel(check, p.dtype, p.head_dim, p.head_dim);
  check_split_pages(check, p.page_size);
  if (p.sequences == 0) return;
  // Rows are counted in 32 bits.
  const int64_t most = int64_t{UINT32_MAX} / (int64_t{p.page_size} * p.num_kv_heads);
  if (p.num_pages < 0 || p.num_pages > most) {
    check.refuse("the pool has {} pages of {} tokens with {} KV heads; expected 0 to {} pages", p.num_pages,
                 p.page_size, p.num_kv_heads, most);
  }
  check.pointers(
      {{"high", p.high}, {"page_table", p.page_table}, {"lengths", p.lengths}, {"key_pages", p.key_pages}});
  check_alignment(check, {{"high", p.high}, {"low", p.low}, {"key_pages", p.key_pages}});
}

void check(const SplitQueriesParams& p) {
  const RowCheck check = check_fields(p, kPlace);
  check_split_kernel(check, p.dtype, p.head_dim, p.query_stride);
  check_alignment(check, {{"queries", p.queries}, {"planes", p.planes}});
}

void check(const PeerSumParams& p) {
  if (!peer_sum_takes(p.ranks, p.count, p.dtype)) {
    RowCheck("peer_sum", kPlace)
        .refuse(
            "no kernel for count {} of {} on {} ranks; whole eights of at most {} bytes on 2 ranks, half of "
            "that on 4 and a quarter on 8 have one",
            p.count, name(p.dtype), p.ranks, most_peer_sum_bytes(2));
  }
  const RowCheck check = check_ranks(p);
  check.pointers({{"data", p.data}});
  check_alignment(check, {{"data", p.data}}, 8);
}

void check(const PeerSumParams& sum, const RmsNormParams& norm, const DeviceLimits& limits) {
  check(norm);
  if (!peer_sum_norm_takes(sum.ranks, norm, limits)) {
    RowCheck("peer_sum", kPlace)
        .refuse("no kernel that norms {} rows of {} {} on {} ranks; see peer_sum_norm_takes()", norm.rows,
                norm.width, name(norm.dtype), sum.ranks);
  }
  const RowCheck check = check_ranks(sum);
  if (sum.data != nullptr || sum.count != 0)
    check.refuse("the numbers are those of the norm: data must be null, count 0");
  check_alignment(
      check, {{"input", norm.input}, {"residual", norm.residual}, {"weight", norm.weight}, {"out", norm.out}},
      8);
}

}  // namespace allot::kernels::cuda
