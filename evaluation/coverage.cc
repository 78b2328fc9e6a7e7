#include "evaluation/coverage.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/philox.h"
#include "evaluation/checked_numbers.h"
#include "evaluation/repetitions.h"

namespace allot::evaluation {
namespace {

// Numbers of the streams of one head.
enum Stream : uint32_t { kQueries, kKeys, kTargets };

DrawRow draws_of(const CoverageSetting& setting, int64_t head, Stream stream, int64_t position) {
  return stream_draws(setting.seed, head, stream, position);
}

// Share of the rows that a head's queries read, for each budget.
class Head {
 public:
  Head(const CoverageSetting& setting, int64_t number) : setting_(setting), number_(number) {
    const auto n = static_cast<size_t>(setting.keys);
    keys_.resize(n * static_cast<size_t>(setting.head_dim));
    std::vector<float> key(static_cast<size_t>(setting.head_dim));
    for (size_t row = 0; row < n; ++row) {
      fill_normal(draws_of(setting, number, kKeys, static_cast<int64_t>(row)), key);
      for (size_t d = 0; d < key.size(); ++d) keys_[d * n + row] = key[d];
    }
  }

  std::vector<double> shares() {
    const auto n = static_cast<size_t>(setting_.keys);
    std::vector<std::vector<bool>> read(setting_.samples.size(), std::vector<bool>(n));
    std::vector<float> query(static_cast<size_t>(setting_.head_dim));
    std::vector<double> up_to(n);  // sums of the weights
    for (size_t i = 0; i < n; ++i) {
      fill_normal(draws_of(setting_, number_, kQueries, static_cast<int64_t>(i)), query);
      sum_weights(query, std::span(up_to).first(i + 1));
      const DrawRow draws = draws_of(setting_, number_, kTargets, static_cast<int64_t>(i));
      for (size_t b = 0; b < read.size(); ++b) {
        for (int64_t s = 0; s < setting_.samples[b]; ++s) {
          const double target = target_of(setting_.spacing, draws, s, setting_.samples[b]) * up_to[i];
          const auto end = up_to.begin() + static_cast<std::ptrdiff_t>(i);
          read[b][static_cast<size_t>(std::lower_bound(up_to.begin(), end, target) - up_to.begin())] = true;
        }
      }
    }
    std::vector<double> shares;
    for (const std::vector<bool>& rows : read)
      shares.push_back(static_cast<double>(std::ranges::count(rows, true)) / static_cast<double>(n));
    return shares;
  }

 private:
  // Keys lie by element, so that the loop over them is one over neighbours.
  void sum_weights(std::span<const float> query, std::span<double> up_to) {
    const auto n = static_cast<size_t>(setting_.keys);
    scores_.assign(up_to.size(), 0.0f);
    const float scale = 1 / std::sqrt(static_cast<float>(query.size()));
    for (size_t d = 0; d < query.size(); ++d) {
      const float element = query[d] * scale;
      const float* const key = keys_.data() + d * n;
      for (size_t j = 0; j < scores_.size(); ++j) scores_[j] += element * key[j];
    }
    // Scores of this setting are a few at most, so that nothing overflows.
    double sum = 0;
    for (size_t j = 0; j < scores_.size(); ++j) up_to[j] = sum += static_cast<double>(std::exp(scores_[j]));
  }

  const CoverageSetting& setting_;
  const int64_t number_;
  std::vector<float> keys_;    // [head_dim, keys]
  std::vector<float> scores_;  // of a query
};

void check(const CoverageSetting& setting) {
  at_least_1("coverage: keys", setting.keys);
  at_least_1("coverage: head_dim", setting.head_dim);
  at_least(2, "coverage: heads", setting.heads);
  check_budgets("coverage: samples", setting.samples);
}

}  // namespace

std::vector<Coverage> measure_coverage(const CoverageSetting& setting,
                                       const std::function<void(int64_t heads)>& progress,
                                       const std::atomic<bool>* stop) {
  check(setting);
  std::vector<std::vector<double>> shares(static_cast<size_t>(setting.heads));
  const bool whole = for_each_repetition(setting.heads, setting.threads, progress, stop, [&](int64_t head) {
    shares[static_cast<size_t>(head)] = Head(setting, head).shares();
  });
  if (!whole) return {};
  std::vector<Coverage> result;
  for (size_t b = 0; b < setting.samples.size(); ++b) {
    const auto heads = static_cast<double>(setting.heads);
    double sum = 0, squares = 0;
    for (const std::vector<double>& of_head : shares) sum += of_head[b];
    const double mean = sum / heads;
    for (const std::vector<double>& of_head : shares) squares += (of_head[b] - mean) * (of_head[b] - mean);
    result.push_back({.samples = setting.samples[b],
                      .share = mean,
                      .standard_error = std::sqrt(squares / (heads - 1) / heads)});
  }
  return result;
}

double expected_coverage(int64_t samples) {
  return static_cast<double>(samples) / static_cast<double>(samples + 1);
}

}  // namespace allot::evaluation
