// The attention of one query in one head, from which the analyses of sampled attention draw their estimates.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/philox.h"
#include "evaluation/repetitions.h"
#include "evaluation/variance.h"

namespace allot::evaluation {

class HeadStates {
 public:
  // Head `number` of the setting: that of its states where it has any, else a random one, which depends on
  // the number and the setting's seed alone. Refers to the setting, which has to live as long.
  HeadStates(const VarianceSetting& setting, int64_t number);
  HeadStates(const HeadStates&) = delete;  // values() may lie in it

  std::span<const double> weights() const { return weights_; }  // [keys], which sum to 1
  std::span<const float> values() const { return values_; }     // [keys, head_dim]
  std::span<const double> exact() const { return exact_; }      // [head_dim], the weighted sum of values
  // Adds weight times a key's value, [head_dim].
  void add(std::span<double> sum, double weight, int64_t key) const;
  // Draws of an estimate; budgets draw apart.
  DrawRow draws(int64_t samples, int64_t replicate) const;

 private:
  DrawRow stream(uint32_t number, int64_t position) const;
  void make_random();  // scores in weights_, and values

  const VarianceSetting& setting_;
  const int64_t number_;
  std::vector<double> weights_;
  std::vector<float> random_values_;
  std::span<const float> values_;
  std::vector<double> exact_;
};

// Throws InvalidArgument where a number of the setting is too small.
void check(const VarianceSetting& setting);

// Calls measure(number, head) for every head, on several threads. False when `stop` was set before all were
// done.
template <class Measure>
bool for_each_head(const VarianceSetting& setting, const std::function<void(int64_t heads)>& progress,
                   const std::atomic<bool>* stop, Measure measure) {
  return for_each_repetition(setting.heads, setting.threads, progress, stop, [&](int64_t number) {
    const HeadStates head(setting, number);
    measure(number, head);
  });
}

}  // namespace allot::evaluation
