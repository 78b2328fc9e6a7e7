#include "policy/response_curves.h"

#include <algorithm>
#include <cmath>

#include "policy/layer_costs.h"

namespace allot::policy {

ResponseCurves::ResponseCurves(Form form, int layers, int64_t total)
    : length_(static_cast<size_t>(total) + 1), zeros_(length_) {
  const double even = static_cast<double>(total) / layers;
  if (form == Form::kSmooth) {
    add_smooth(even);
  } else {
    add_steps(even);
  }
}

std::span<const double> ResponseCurves::curve(size_t shape, size_t need) const {
  if (needs_ == 1) return {table_.data() + shape * length_, length_};
  if (need == 0) return zeros_;
  return {table_.data() + shape * (needs_ - 1 + length_) + needs_ - 1 - need, length_};
}

void ResponseCurves::add_smooth(double even) {
  shapes_ = kResponseCurves;
  for (size_t shape = 0; shape < shapes_; ++shape) {
    for (size_t samples = 0; samples < length_; ++samples) {
      table_.push_back(response_curve(shape, static_cast<double>(samples), even));
    }
  }
}

void ResponseCurves::add_steps(double even) {
  // What needs more than four even parts can hardly be given it.
  needs_ = 1 + std::min(length_ - 1, static_cast<size_t>(std::ceil(4 * even)));
  for (const double softness : {0.03, 0.05, 0.1, 0.2}) {
    ++shapes_;
    const double width = softness * std::max(even, 1.0);
    for (size_t place = 0; place < needs_ - 1 + length_; ++place) {
      const double beyond = static_cast<double>(place) - static_cast<double>(needs_ - 1) + 0.5;
      table_.push_back(1 / (1 + std::exp(beyond / width)));
    }
  }
}

}  // namespace allot::policy
