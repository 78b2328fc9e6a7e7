// Closed forms of Appendix N of the S2ANTA paper: how far the mean of sampled value rows lies from exact
// attention, as the trace of its covariance. Weights sum to 1; values are [keys, head_dim], of any
// floating-point type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace allot::kernels {

// Trace of the covariance of a value drawn with chances in proportion to `weights`, of some of the rows.
class ValueSpread {
 public:
  explicit ValueSpread(size_t head_dim) : sum_(head_dim) {}

  template <class Value>
  void add(double weight, std::span<const Value> value) {
    mass_ += weight;
    for (size_t d = 0; d < sum_.size(); ++d) {
      const auto x = static_cast<double>(value[d]);
      squares_ += weight * x * x;
      sum_[d] += weight * x;
    }
  }
  double trace() const {
    if (mass_ <= 0) return 0;
    double of_mean = 0;
    for (const double x : sum_) of_mean += x / mass_ * (x / mass_);
    return squares_ / mass_ - of_mean;
  }

 private:
  double mass_ = 0;
  double squares_ = 0;
  std::vector<double> sum_;
};

// Calls visit(stratum, key, mass) for the mass that each key has in each of `samples` equal parts of the CDF,
// in the order of the CDF.
template <class Visit>
void for_each_stratum_mass(std::span<const double> weights, int64_t samples, Visit visit) {
  const auto count = static_cast<double>(samples);
  double up_to = 0;
  int64_t stratum = 0;
  for (size_t key = 0; key < weights.size(); ++key) {
    double left = weights[key];
    while (left > 0) {
      const double room = static_cast<double>(stratum + 1) / count - up_to;
      const bool fits = left <= room || stratum == samples - 1;
      const double mass = fits ? left : std::max(0.0, room);
      visit(stratum, key, mass);
      left -= mass;
      up_to += mass;
      if (fits) break;
      ++stratum;
    }
  }
}

// Of the mean of `samples` independent rows.
template <class Value>
double iid_variance(std::span<const double> weights, std::span<const Value> values, int64_t samples) {
  const size_t head_dim = values.size() / weights.size();
  ValueSpread spread(head_dim);
  for (size_t key = 0; key < weights.size(); ++key)
    spread.add(weights[key], values.subspan(key * head_dim, head_dim));
  return spread.trace() / static_cast<double>(samples);
}

// Of the mean of a row from each of `samples` equal strata.
template <class Value>
double strat_variance(std::span<const double> weights, std::span<const Value> values, int64_t samples) {
  const size_t head_dim = values.size() / weights.size();
  double traces = 0;
  int64_t current = 0;
  ValueSpread spread(head_dim);
  for_each_stratum_mass(weights, samples, [&](int64_t stratum, size_t key, double mass) {
    if (stratum != current) {
      traces += spread.trace();
      spread = ValueSpread(head_dim);
      current = stratum;
    }
    spread.add(mass, values.subspan(key * head_dim, head_dim));
  });
  traces += spread.trace();
  return traces / static_cast<double>(samples) / static_cast<double>(samples);
}

}  // namespace allot::kernels
