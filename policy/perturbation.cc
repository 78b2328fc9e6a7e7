#include "policy/perturbation.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "policy/draws.h"

namespace allot::policy {
namespace {

// first, first + 1, … shuffled (Fisher and Yates).
std::vector<uint32_t> shuffled(uint32_t first, uint32_t count, DrawStream& stream) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), first);
  for (uint32_t left = count; left > 1; --left) std::swap(order[left - 1], order[stream.below(left)]);
  return order;
}

}  // namespace

PerturbationDirections::PerturbationDirections(int layers, uint64_t seed) : layers_(layers), seed_(seed) {}

std::vector<double> PerturbationDirections::of(int64_t pair) {
  const uint32_t columns = std::bit_ceil(static_cast<uint32_t>(std::max(2, layers_)));
  const uint32_t cycle_length = columns - 1;
  const auto number = static_cast<uint64_t>(pair);
  if (cycle_ != number / cycle_length) {
    DrawStream stream(seed_, number / cycle_length, DrawPurpose::kPerturbation);
    rows_ = shuffled(1, cycle_length, stream);
    columns_ = shuffled(0, columns, stream);
    cycle_ = number / cycle_length;
  }
  const uint32_t row = rows_[number % cycle_length];
  std::vector<double> direction(static_cast<size_t>(layers_));
  for (size_t layer = 0; layer < direction.size(); ++layer) {
    // Sylvester's matrix: entry (row, column) is -1 to the number of common bits.
    direction[layer] = std::popcount(row & columns_[layer]) % 2 == 0 ? 1 : -1;
  }
  return direction;
}

std::vector<double> perturbation_direction(int layers, uint64_t seed, int64_t pair) {
  return PerturbationDirections(layers, seed).of(pair);
}

}  // namespace allot::policy
