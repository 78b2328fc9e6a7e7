// The functions of the gate in a layer's MLP.
#pragma once

namespace allot::kernels {

enum class Activation {
  kSilu,         // x / (1 + exp(-x))
  kReluSquared,  // max(x, 0)^2
};

}  // namespace allot::kernels
