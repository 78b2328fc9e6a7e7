// The run of `allot bench attention`: every shape with its peers first, which are checked against allot's
// exact kernel before they are timed, then allot's estimators.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "bench/attention/report.h"
#include "bench/attention/shapes.h"
#include "kernels/method.h"

namespace allot::bench::attention {

struct AttentionWorkload {
  std::vector<Shape> shapes;
  std::vector<kernels::Estimator> estimators;
  std::vector<KeyFormat> key_formats = {KeyFormat::kSixteenBits};
  bool with_peers = true;
  bool paged = true;       // pages of page_size tokens, shuffled
  bool contiguous = true;  // one page a sequence
  int32_t page_size = 16;
  kernels::DType dtype = kernels::DType::kBFloat16;
  double score_deviation = 1;
  // Of the rows that sample, each with an estimator of its own.
  kernels::AttentionMethod method = kernels::usual_method();
  int32_t warmups = 10;
  int32_t runs = 40;
  Flush flush = Flush::kUpdate;
};

// Who hears of the results, in the order of measurement.
struct Listener {
  std::function<void(const Machine&, const Conditions&)> start;
  std::function<void(const Row&)> row;
};

// Measures on the current device. `allot_version` goes into the machine. Returns how many of allot's own rows
// failed; a row that failed has no time and says why. Throws NotFound and CudaError when there is nothing to
// measure on, and whatever stops the run as a whole.
int run_attention_bench(const AttentionWorkload& workload, const char* allot_version,
                        const Listener& listener);

}  // namespace allot::bench::attention
