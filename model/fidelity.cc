#include "model/fidelity.h"

#include <cmath>

#include "model/sampling.h"

namespace allot::model {

void take_comparison(std::span<const kernels::RowDivergence> rows, bool of_each_position, Fidelity* result) {
  double divergence = 0;
  int64_t same = 0;
  for (const kernels::RowDivergence& row : rows) {
    if (!std::isfinite(row.divergence)) throw_not_a_number();
    divergence += row.divergence;
    same += row.same_top;
    if (!of_each_position) continue;
    result->divergences.push_back(row.divergence);
    result->agreements.push_back(static_cast<uint8_t>(row.same_top));
  }
  const auto count = static_cast<double>(rows.size());
  result->positions = static_cast<int64_t>(rows.size());
  result->divergence = divergence / count;
  result->top1_agreement = static_cast<double>(same) / count;
}

}  // namespace allot::model
