// Directions in which `pairs` perturbs the policy logits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace allot::policy {

// Direction of pair number `pair`: one sign per layer. Successive pairs go through the rows of a Hadamard
// matrix of H columns, where H is the least power of two >= max(2, layers), without the row of ones (it
// changes no share). Each cycle of H - 1 pairs assigns rows and columns again at random. Within a cycle any
// two layers agree about as often as they differ, so the effect of one layer hardly leaks into the estimate
// of another; with independent signs it leaks until it averages out.
std::vector<double> perturbation_direction(int layers, uint64_t seed, int64_t pair);

// perturbation_direction for successive pairs, which are mostly of the same cycle: each cycle is
// assigned only once.
class PerturbationDirections {
 public:
  PerturbationDirections(int layers, uint64_t seed);
  std::vector<double> of(int64_t pair);

 private:
  int layers_;
  uint64_t seed_;
  std::optional<uint64_t> cycle_;  // the cycle of the two below
  std::vector<uint32_t> rows_;     // [pair of the cycle]
  std::vector<uint32_t> columns_;  // [layers], then those left over
};

}  // namespace allot::policy
