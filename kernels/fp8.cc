#include "kernels/fp8.h"

#include "kernels/element.h"
#include "kernels/row_checks.h"
#include "kernels/thread_pool.h"

namespace allot::kernels {
namespace {

// NaN where an element is, which std::max would drop.
float largest_magnitude(const QuantizeRowsParams& p, int64_t row) {
  float largest = 0;
  for (int64_t i = row * p.width; i < (row + 1) * p.width; ++i) {
    const float magnitude = std::abs(element(p.input, p.dtype, i));
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;
    if (std::isnan(largest)) break;
  }
  return largest;
}

}  // namespace

void quantize_rows(const QuantizeRowsParams& p, int num_threads) {
  check_fields(p, kHostPlace);
  ThreadPool::of_this_thread().for_each(p.rows, num_threads, [&](int64_t row) {
    const Fp8Scale scale = fp8_scale(largest_magnitude(p, row));
    p.scales[row] = scale.scale;
    for (int64_t i = row * p.width; i < (row + 1) * p.width; ++i) {
      p.out[i] = std::isnan(scale.scale) ? uint8_t{0}
                                         : e4m3_from_float(element(p.input, p.dtype, i) * scale.inverse);
    }
  });
}

}  // namespace allot::kernels
