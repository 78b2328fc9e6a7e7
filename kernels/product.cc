#include "kernels/product.h"

#include <algorithm>

#include "base/round_up.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/launch.h"
#include "kernels/cpu/workspace.h"
#include "kernels/row_checks.h"
#include "kernels/thread_pool.h"

namespace allot::kernels {
namespace {

using cpu::Isa;
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

// How a matrix lies: in panels of so many columns; a panel in steps along the width, a step in blocks of
// kLanes columns, a block in groups of elements of a column, one column after the other. Columns are filled
// up to whole panels and the width to whole steps, with zeros.
struct Order {
  int64_t columns;
  int64_t step;
  int64_t group;
};

Order order_of(DType dtype, Isa isa) {
  if (cpu::multiplies_in_tiles(isa, dtype))
    return {.columns = cpu::kTilePanelColumns, .step = cpu::kTileWidth, .group = 2};
  return {.columns = kLanes, .step = 1, .group = 1};
}

// Elements [step, step + order.step) of kLanes columns from `first` on.
template <class T>
void pack_block(const T* matrix, int64_t columns, int64_t width, Order order, int64_t first, int64_t step,
                T* out) {
  for (int64_t group = step; group < step + order.step; group += order.group) {
    for (int64_t column = first; column < first + kLanes; ++column) {
      for (int64_t i = group; i < group + order.group; ++i)
        *out++ = column < columns && i < width ? matrix[column * width + i] : T{0};
    }
  }
}

template <class T>
void pack(const void* matrix, int64_t columns, int64_t width, Order order, void* packed, int num_threads) {
  const int64_t panel_width = round_up(width, order.step);
  const int64_t panels = round_up(columns, order.columns) / order.columns;
  ThreadPool::of_this_thread().for_each(panels, num_threads, [&](int64_t panel) {
    const int64_t begin = panel * order.columns;
    T* out = static_cast<T*>(packed) + begin * panel_width;
    for (int64_t step = 0; step < panel_width; step += order.step) {
      for (int64_t first = begin; first < begin + order.columns; first += kLanes) {
        pack_block(static_cast<const T*>(matrix), columns, width, order, first, step, out);
        out += kLanes * order.step;
      }
    }
  });
}

// The calling thread's, kept between products.
cpu::ProductScratch scratch_for(const ProductParams& p, Isa isa) {
  if (cpu::multiplies_in_tiles(isa, p.dtype)) {
    thread_local cpu::Buffer<uint16_t> tiles;
    const int64_t rows = cpu::whole_lanes(std::min(p.rows, cpu::kTileProductRows));
    return {.tiles = tiles.reserve(rows * round_up(p.width, cpu::kTileWidth))};
  }
  constexpr int64_t kSums = cpu::kProductRows * kLanes, kPanel = cpu::kProductWidth * kLanes;
  thread_local cpu::Buffer<float> memory;
  float* const sums = memory.reserve(kSums + kPanel + std::min(p.rows, cpu::kProductRows) * p.width);
  return {.rows = sums + kSums + kPanel, .sums = sums, .panel = sums + kSums};
}

}  // namespace

namespace cpu {

int64_t packed_matrix_bytes(int64_t columns, int64_t width, DType dtype, Isa isa) {
  check_matrix("packed_matrix_bytes", columns, width, dtype);
  const Order order = order_of(dtype, isa);
  return round_up(columns, order.columns) * round_up(width, order.step) * size_of(dtype);
}

void pack_matrix(const void* matrix, int64_t columns, int64_t width, DType dtype, void* packed,
                 int num_threads, Isa isa) {
  check_matrix("pack_matrix", columns, width, dtype).pointers({{"matrix", matrix}, {"packed", packed}});
  const Order order = order_of(dtype, isa);
  if (dtype == DType::kFloat32) {
    pack<float>(matrix, columns, width, order, packed, num_threads);
  } else {
    pack<uint16_t>(matrix, columns, width, order, packed, num_threads);
  }
}

void multiply(const ProductParams& p, int num_threads, Isa isa) {
  const RowCheck check = check_matrix("multiply", p.columns, p.width, p.dtype);
  check.rows("rows", p.rows);
  if (p.rows == 0) return;
  check.pointers({{"input", p.input}, {"matrix", p.matrix}, {"out", p.out}});
  const auto kernel = kernels_of(isa).multiply;
  const int64_t parts = std::clamp<int64_t>(p.columns / kPartColumns, 1, std::max(num_threads, 1));
  const int64_t columns = round_up((p.columns + parts - 1) / parts, order_of(p.dtype, isa).columns);
  ThreadPool::of_this_thread().for_each(parts, num_threads, [&](int64_t part) {
    const int64_t begin = std::min(part * columns, p.columns);
    kernel(p, begin, std::min(begin + columns, p.columns), scratch_for(p, isa));
  });
}

}  // namespace cpu

int64_t packed_matrix_bytes(int64_t columns, int64_t width, DType dtype) {
  return cpu::packed_matrix_bytes(columns, width, dtype, cpu::best_isa());
}

void pack_matrix(const void* matrix, int64_t columns, int64_t width, DType dtype, void* packed,
                 int num_threads) {
  cpu::pack_matrix(matrix, columns, width, dtype, packed, num_threads, cpu::best_isa());
}

void multiply(const ProductParams& params, int num_threads) {
  cpu::multiply(params, num_threads, cpu::best_isa());
}

}  // namespace allot::kernels
