#include "kernels/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/launch.h"
#include "kernels/row_checks.h"
#include "kernels/thread_pool.h"

namespace allot::kernels {
namespace {

// Runs body(begin, end) over parts of [0, rows). A part moves at least kPartBytes, below which waking a
// thread costs more than it saves.
template <class Body>
void for_parts(int64_t rows, int64_t row_bytes, int num_threads, const Body& body) {
  constexpr int64_t kPartBytes = 64 * 1024;
  const int64_t least_rows = std::max<int64_t>(1, kPartBytes / std::max<int64_t>(row_bytes, 1));
  const int64_t parts = std::clamp<int64_t>(rows / least_rows, 1, 4 * int64_t{std::max(num_threads, 1)});
  ThreadPool::of_this_thread().for_each(
      parts, num_threads, [&](int64_t part) { body(rows * part / parts, rows * (part + 1) / parts); });
}

template <class Params>
void check_slot(const RowCheck& check, const Params& p, int64_t token, int64_t least) {
  if (p.slots[token] < least || p.slots[token] >= p.num_pages * p.page_size) {
    check.refuse("token {} has cache slot {}; the {} pages of {} tokens have slots 0 to {}", token,
                 p.slots[token], p.num_pages, p.page_size, p.num_pages * p.page_size - 1);
  }
}

void check(const RotaryParams& p) {
  const RowCheck check = check_fields(p, kHostPlace);
  if (p.planes.high != nullptr || p.planes.query != nullptr)
    check.refuse("planes are set, and keys and queries are split on CUDA only; use store_split_keys");
  for (int64_t token = 0; token < p.tokens; ++token) {
    if (p.positions[token] < 0 || p.positions[token] >= p.table_rows) {
      check.refuse("token {} has position {}; the cos and sin tables have rows 0 to {}", token,
                   p.positions[token], p.table_rows - 1);
    }
    check_slot(check, p, token, 0);
  }
}

void check(const ValueNormsParams& p) {
  const RowCheck check = check_fields(p, kHostPlace);
  for (int64_t token = 0; token < p.tokens; ++token)
    check_slot(check, p, token, std::numeric_limits<int64_t>::min());
}

void check(const EmbeddingParams& p) {
  const RowCheck check = check_fields(p, kHostPlace);
  for (int64_t token = 0; token < p.tokens; ++token) {
    if (p.ids[token] < 0 || p.ids[token] >= p.vocab_size) {
      check.refuse("token {} has id {}; the table has ids 0 to {}", token, p.ids[token], p.vocab_size - 1);
    }
  }
}

}  // namespace

namespace cpu {

void rms_norm(const RmsNormParams& p, int num_threads, Isa isa) {
  check_fields(p, kHostPlace);
  const auto kernel = kernels_of(isa).rms_norm;
  const int64_t streams = p.residual == nullptr ? 2 : 4;
  for_parts(p.rows, streams * p.width * size_of(p.dtype), num_threads,
            [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

void rotate_and_store(const RotaryParams& p, int num_threads, Isa isa) {
  check(p);
  const auto kernel = kernels_of(isa).rotate_and_store;
  for_parts(p.tokens, 2 * p.qkv_stride * size_of(p.dtype), num_threads,
            [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

void store_value_norms(const ValueNormsParams& p, int num_threads, Isa isa) {
  check(p);
  const auto kernel = kernels_of(isa).store_value_norms;
  for_parts(p.tokens, int64_t{p.num_kv_heads} * p.head_dim * size_of(p.dtype), num_threads,
            [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

void activate_and_multiply(const ActivateAndMultiplyParams& p, int num_threads, Isa isa) {
  check_fields(p, kHostPlace);
  const auto kernel = kernels_of(isa).activate_and_multiply;
  for_parts(p.rows, 3 * int64_t{p.width} * size_of(p.dtype), num_threads,
            [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

void row_divergence(const DivergenceParams& p, int num_threads, Isa isa) {
  check_fields(p, kHostPlace);
  const auto kernel = kernels_of(isa).row_divergence;
  for_parts(p.rows, 2 * int64_t{p.vocab_size} * size_of(p.dtype), num_threads,
            [&](int64_t begin, int64_t end) { kernel(p, begin, end); });
}

}  // namespace cpu

void rms_norm(const RmsNormParams& params, int num_threads) {
  cpu::rms_norm(params, num_threads, cpu::best_isa());
}

void rotate_and_store(const RotaryParams& params, int num_threads) {
  cpu::rotate_and_store(params, num_threads, cpu::best_isa());
}

void store_value_norms(const ValueNormsParams& params, int num_threads) {
  cpu::store_value_norms(params, num_threads, cpu::best_isa());
}

void activate_and_multiply(const ActivateAndMultiplyParams& params, int num_threads) {
  cpu::activate_and_multiply(params, num_threads, cpu::best_isa());
}

void row_divergence(const DivergenceParams& params, int num_threads) {
  cpu::row_divergence(params, num_threads, cpu::best_isa());
}

void gather_embeddings(const EmbeddingParams& p, int num_threads) {
  check(p);
  const int64_t row_bytes = p.width * size_of(p.dtype);
  for_parts(p.tokens, 2 * row_bytes, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      std::memcpy(static_cast<char*>(p.out) + token * row_bytes,
                  static_cast<const char*>(p.table) + p.ids[token] * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });
}

}  // namespace allot::kernels
