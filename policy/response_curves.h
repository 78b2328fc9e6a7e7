// How a layer may suffer from few samples: curves over 0..total samples, as tables. The smooth ones are
// shared by all layers; a step is a layer's own, since each layer may need another number of samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace allot::policy {

class ResponseCurves {
 public:
  enum class Form : uint8_t {
    // Falling curves (response_curve in policy/layer_costs.h), from the straightest to the most bent. Each is
    // 0 at the even part total / layers, and
    // half the even part costs 1 more.
    kSmooth,
    // From 1 to 0 where the samples reach a need, from sharp to soft; 0 throughout for a need of 0.
    kSteps,
  };

  ResponseCurves(Form form, int layers, int64_t total);

  // Shapes are shared by all layers; needs are a layer's own. Smooth curves have the single need 0.
  size_t shapes() const { return shapes_; }
  size_t needs() const { return needs_; }
  std::span<const double> curve(size_t shape, size_t need = 0) const;

 private:
  void add_smooth(double even);
  void add_steps(double even);

  size_t length_;  // total + 1
  size_t shapes_ = 0;
  size_t needs_ = 1;
  // Of smooth curves [shapes][length]. A step is the same wherever it lies, so that all needs share a table
  // by samples - need, from -(needs - 1) on: [shapes][needs - 1 + length].
  std::vector<double> table_;
  std::vector<double> zeros_;  // [length]
};

}  // namespace allot::policy
