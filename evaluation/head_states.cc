#include "evaluation/head_states.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "evaluation/checked_numbers.h"
#include "evaluation/spacing.h"

namespace allot::evaluation {
namespace {

// Numbers of the streams of one head.
enum class States : uint32_t { kScores, kValues, kTargets };

}  // namespace

HeadStates::HeadStates(const VarianceSetting& setting, int64_t number) : setting_(setting), number_(number) {
  if (setting.states != nullptr) {
    weights_ = setting.states->scores(number);
    values_ = setting.states->values(number);
  } else {
    make_random();
  }
  const double largest = *std::ranges::max_element(weights_);
  double sum = 0;
  for (double& w : weights_) sum += w = std::exp(w - largest);
  for (double& w : weights_) w /= sum;
  exact_.resize(values_.size() / weights_.size());
  for (size_t key = 0; key < weights_.size(); ++key) add(exact_, weights_[key], static_cast<int64_t>(key));
}

void HeadStates::add(std::span<double> sum, double weight, int64_t key) const {
  const float* const row = values_.data() + static_cast<size_t>(key) * sum.size();
  for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * static_cast<double>(row[d]);
}

DrawRow HeadStates::draws(int64_t samples, int64_t replicate) const {
  DrawRow draws = stream(static_cast<uint32_t>(States::kTargets), replicate);
  draws.head = static_cast<uint32_t>(samples);
  return draws;
}

DrawRow HeadStates::stream(uint32_t number, int64_t position) const {
  return stream_draws(setting_.seed, number_, number, position);
}

void HeadStates::make_random() {
  const auto keys = static_cast<size_t>(setting_.keys);
  const auto head_dim = static_cast<size_t>(setting_.head_dim);
  std::vector<float> scores(keys);
  fill_normal(stream(static_cast<uint32_t>(States::kScores), 0), scores);
  for (const float score : scores) weights_.push_back(static_cast<double>(score) * setting_.score_deviation);
  random_values_.resize(keys * head_dim);
  for (size_t key = 0; key < keys; ++key)
    fill_normal(stream(static_cast<uint32_t>(States::kValues), static_cast<int64_t>(key)),
                std::span(random_values_).subspan(key * head_dim, head_dim));
  values_ = random_values_;
}

void check(const VarianceSetting& setting) {
  at_least_1("variance: keys", setting.keys);
  at_least_1("variance: head_dim", setting.head_dim);
  at_least_1("variance: heads", setting.heads);
  at_least(2, "variance: replicates", setting.replicates);
  if (!(setting.score_deviation >= 0 && setting.score_deviation <= 100)) {
    throw InvalidArgument(
        fmt::format("variance: score_deviation is {}, expected 0 to 100", setting.score_deviation));
  }
  check_budgets("variance: samples", setting.samples);
}

}  // namespace allot::evaluation
