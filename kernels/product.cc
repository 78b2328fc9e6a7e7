#include "kernels/product.h"

#include <algorithm>
#include <vector>

#include "base/round_up.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/launch.h"
#include "kernels/row_checks.h"
#include "kernels/thread_pool.h"

namespace allot::kernels {
namespace {

using cpu::kLanes;

// Columns that are worth a thread of their own.
constexpr int64_t kPartColumns = 256;

RowCheck check_matrix(const char* operation, int64_t columns, int64_t width, DType dtype) {
  const RowCheck check(operation, kHostPlace);
  check.size("columns", columns, 1);
  check.size("width", width, 1);
  if (dtype == DType::kFloat16) check.refuse("dtype is float16; expected float32 or bfloat16");
  return check;
}

template <class T>
void pack_panel(const T* matrix, int64_t columns, int64_t width, T* panel) {
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t column = 0; column < kLanes; ++column)
      panel[i * kLanes + column] = column < columns ? matrix[column * width + i] : T{0};
  }
}

template <class T>
void pack(const void* matrix, int64_t columns, int64_t width, void* packed, int num_threads) {
  const int64_t panels = (columns + kLanes - 1) / kLanes;
  ThreadPool::of_this_thread().for_each(panels, num_threads, [&](int64_t panel) {
    const int64_t first = panel * kLanes;
    pack_panel(static_cast<const T*>(matrix) + first * width, columns - first, width,
               static_cast<T*>(packed) + first * width);
  });
}

// The calling thread's, kept between products.
cpu::ProductScratch scratch_for(const ProductParams& p) {
  thread_local std::vector<float> memory;
  const auto rows = static_cast<size_t>(std::min(p.rows, cpu::kProductRows) * p.width);
  constexpr size_t kSums = cpu::kProductRows * kLanes, kPanel = cpu::kProductWidth * kLanes;
  if (memory.size() < rows + kSums + kPanel) memory.resize(rows + kSums + kPanel);
  return {.rows = memory.data() + kSums + kPanel, .sums = memory.data(), .panel = memory.data() + kSums};
}

}  // namespace

int64_t packed_matrix_bytes(int64_t columns, int64_t width, DType dtype) {
  check_matrix("packed_matrix_bytes", columns, width, dtype);
  return round_up(columns, int64_t{kLanes}) * width * size_of(dtype);
}

void pack_matrix(const void* matrix, int64_t columns, int64_t width, DType dtype, void* packed,
                 int num_threads) {
  check_matrix("pack_matrix", columns, width, dtype).pointers({{"matrix", matrix}, {"packed", packed}});
  if (dtype == DType::kFloat32) {
    pack<float>(matrix, columns, width, packed, num_threads);
  } else {
    pack<uint16_t>(matrix, columns, width, packed, num_threads);
  }
}

namespace cpu {

void multiply(const ProductParams& p, int num_threads, Isa isa) {
  const RowCheck check = check_matrix("multiply", p.columns, p.width, p.dtype);
  check.rows("rows", p.rows);
  if (p.rows == 0) return;
  check.pointers({{"input", p.input}, {"matrix", p.matrix}, {"out", p.out}});
  const auto kernel = kernels_of(isa).multiply;
  const int64_t parts = std::clamp<int64_t>(p.columns / kPartColumns, 1, std::max(num_threads, 1));
  const int64_t columns = round_up((p.columns + parts - 1) / parts, int64_t{kLanes});
  ThreadPool::of_this_thread().for_each(parts, num_threads, [&](int64_t part) {
    const int64_t begin = std::min(part * columns, p.columns);
    kernel(p, begin, std::min(begin + columns, p.columns), scratch_for(p));
  });
}

}  // namespace cpu

void multiply(const ProductParams& params, int num_threads) {
  cpu::multiply(params, num_threads, cpu::best_isa());
}

}  // namespace allot::kernels
