#include "model/low_rank_update.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/instructions.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"

namespace allot::model {
namespace {

// Columns computed together: a row of sums and four rows of A stay in a core's first cache.
constexpr int64_t kColumns = 512;
// Rows of A added in one pass over the sums, which are read and written that much less often.
constexpr int64_t kUnroll = 4;

// Elements [first, first + out.size()) of a stored tensor, whose bytes need not be aligned.
void widen(const TensorView& tensor, int64_t first, std::span<float> out) {
  const std::byte* bytes = tensor.bytes.data();
  const auto half_at = [&](size_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes + 2 * (static_cast<size_t>(first) + i), 2);
    return bits;
  };
  switch (tensor.dtype) {
    case TensorDType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = kernels::float_from_bfloat16(half_at(i));
      return;
    case TensorDType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = kernels::float_from_float16(half_at(i));
      return;
    default:
      std::memcpy(out.data(), bytes + 4 * first, out.size_bytes());
  }
}

// values[c] += scaling * sum over k of b[k] * a[k * kColumns + c], for c in [0, width), width <= kColumns.
[[gnu::always_inline]] inline void add_row(const float* a, const float* b, int64_t rank, float scaling,
                                           int64_t width, float* values) {
  float sums[kColumns];
  std::fill_n(sums, width, 0.0f);
  int64_t k = 0;
  for (; k + kUnroll <= rank; k += kUnroll) {
    const float *a0 = a + k * kColumns, *a1 = a0 + kColumns, *a2 = a1 + kColumns, *a3 = a2 + kColumns;
    const float b0 = b[k], b1 = b[k + 1], b2 = b[k + 2], b3 = b[k + 3];
    for (int64_t c = 0; c < width; ++c) {
      sums[c] = (((sums[c] + b0 * a0[c]) + b1 * a1[c]) + b2 * a2[c]) + b3 * a3[c];
    }
  }
  for (; k < rank; ++k) {
    for (int64_t c = 0; c < width; ++c) sums[c] += b[k] * a[k * kColumns + c];
  }
  for (int64_t c = 0; c < width; ++c) values[c] += scaling * sums[c];
}

// One compilation for each instruction set, chosen when first called, as in random_weights.cc.
using AddRow = void (*)(const float* a, const float* b, int64_t rank, float scaling, int64_t width,
                        float* values);

[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void add_row_avx512(const float* a, const float* b,
                                                                          int64_t rank, float scaling,
                                                                          int64_t width, float* values) {
  add_row(a, b, rank, scaling, width, values);
}
[[gnu::target("avx2")]] void add_row_avx2(const float* a, const float* b, int64_t rank, float scaling,
                                          int64_t width, float* values) {
  add_row(a, b, rank, scaling, width, values);
}
void add_row_anywhere(const float* a, const float* b, int64_t rank, float scaling, int64_t width,
                      float* values) {
  add_row(a, b, rank, scaling, width, values);
}

AddRow fastest_add_row() {
  if (has_avx512()) return add_row_avx512;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) return add_row_avx2;
  return add_row_anywhere;
}

}  // namespace

void add_elements(const LowRankUpdate& update, int64_t first, std::span<float> values) {
  if (values.empty()) return;
  static const AddRow add = fastest_add_row();
  const int64_t rank = update.rank(), columns = update.in_features();
  const int64_t end = first + static_cast<int64_t>(values.size());
  const int64_t first_row = first / columns, end_row = (end + columns - 1) / columns;
  std::vector<float> b(static_cast<size_t>((end_row - first_row) * rank));
  widen(update.b, first_row * rank, b);
  std::vector<float> a(static_cast<size_t>(rank * kColumns));
  for (int64_t block = 0; block < columns; block += kColumns) {
    const int64_t block_end = std::min(block + kColumns, columns);
    for (int64_t k = 0; k < rank; ++k) {
      widen(update.a, k * columns + block,
            std::span(a).subspan(static_cast<size_t>(k * kColumns), static_cast<size_t>(block_end - block)));
    }
    for (int64_t row = first_row; row < end_row; ++row) {
      // Elements of the matrix: this row's part of the block, within the range.
      const int64_t from = std::max(row * columns + block, first);
      const int64_t to = std::min(row * columns + block_end, end);
      if (from >= to) continue;
      add(a.data() + (from - row * columns - block), b.data() + (row - first_row) * rank, rank,
          update.scaling, to - from, values.data() + (from - first));
    }
  }
}

}  // namespace allot::model
