// Directions in which `pairs` perturbs the policy logits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace allot::policy {

// Direction of pair number `pair`: one sign per layer. Successive pairs walk through the rows of a Hadamard
// matrix of H columns, H the least power of two >= max(2, layers), leaving out the row of ones (it changes no
// share). Each cycle of H - 1 pairs deals rows and columns out afresh. Within a cycle any two layers agree
// about as often as they differ, so the effect of one layer hardly leaks into the estimate of another;
// independent signs leak until it averages out.
std::vector<double> perturbation_direction(int layers, uint64_t seed, int64_t pair);

// perturbation_direction for pairs that are mostly of the same cycle as the one before: that cycle
// is dealt once.
class PerturbationDirections {
 public:
  PerturbationDirections(int layers, uint64_t seed);
  std::vector<double> of(int64_t pair);

 private:
  int layers_;
  uint64_t seed_;
  std::optional<uint64_t> cycle_;  // that the two below are of
  std::vector<uint32_t> rows_;     // [pair of the cycle]
  std::vector<uint32_t> columns_;  // [layers] and those left over
};

}  // namespace allot::policy
