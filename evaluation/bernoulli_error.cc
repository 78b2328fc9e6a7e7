#include "evaluation/bernoulli_error.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "evaluation/checked_numbers.h"
#include "evaluation/repetitions.h"
#include "evaluation/spacing.h"
#include "kernels/bernoulli_query.h"
#include "kernels/sampling.h"

namespace allot::evaluation {
namespace {

constexpr size_t kSector = 16;  // elements of 2 bytes that memory is read by

enum class BernoulliStates : uint32_t { kQueries, kKeys, kDraws };

// A group's queries and keys, and estimates of their scores.
class BernoulliInstance {
 public:
  BernoulliInstance(const BernoulliSetting& setting, int64_t number)
      : setting_(setting), number_(number), head_dim_(static_cast<size_t>(setting.head_dim)) {
    queries_.resize(static_cast<size_t>(setting.group) * head_dim_);
    fill_normal(draws_of(BernoulliStates::kQueries, 0), queries_);
    keys_.resize(static_cast<size_t>(setting.keys) * head_dim_);
    for (int64_t key = 0; key < setting.keys; ++key) {
      const auto row = std::span(keys_).subspan(static_cast<size_t>(key) * head_dim_, head_dim_);
      fill_normal(draws_of(BernoulliStates::kKeys, key), row);
      for (float& x : row) x /= std::sqrt(static_cast<float>(head_dim_));
    }
    magnitudes_.resize(head_dim_);
    for (size_t i = 0; i < queries_.size(); ++i)
      magnitudes_[i % head_dim_] +=
          std::abs(static_cast<double>(queries_[i])) / static_cast<double>(setting.group);
    norm_ = *std::ranges::max_element(magnitudes_);
  }

  BernoulliError estimate(int64_t budget) const {
    const auto drawn = draw(budget);
    BernoulliError result{.budget = budget};
    for (size_t head = 0; head < queries_.size() / head_dim_; ++head) {
      const auto query = std::span(queries_).subspan(head * head_dim_, head_dim_);
      result.error +=
          error_of(query, drawn) * static_cast<double>(head_dim_) / static_cast<double>(queries_.size());
    }
    size_t features = 0, sectors = 0;
    for (size_t first = 0; first < head_dim_; first += kSector) {
      const auto of_sector = std::span(drawn).subspan(first, std::min(kSector, head_dim_ - first));
      const auto of_some = static_cast<size_t>(
          std::ranges::count_if(of_sector, [](const auto& element) { return element.successes > 0; }));
      features += of_some;
      sectors += of_some > 0;
    }
    result.features = static_cast<double>(features) / static_cast<double>(head_dim_);
    result.sectors = static_cast<double>(sectors) / static_cast<double>((head_dim_ + kSector - 1) / kSector);
    return result;
  }

 private:
  using Element = kernels::BernoulliElement;

  DrawRow draws_of(BernoulliStates stream, int64_t position) const {
    return stream_draws(setting_.seed, number_, static_cast<uint32_t>(stream), position);
  }

  // By the rules of the kernels. Budgets draw apart.
  std::vector<Element> draw(int64_t budget) const {
    const auto count = static_cast<int32_t>(budget);
    const kernels::BernoulliDraws draws{draws_of(BernoulliStates::kDraws, budget),
                                        static_cast<int32_t>(head_dim_), count};
    std::vector<Element> elements;
    for (size_t i = 0; i < head_dim_; ++i) {
      Element element = kernels::bernoulli_element(magnitudes_[i], norm_, count);
      const auto place = static_cast<int32_t>(i);
      if (setting_.stratified) {
        element.successes = draws.stratified(place, magnitudes_[i] / norm_);
      } else {
        for (int32_t b = 0; b < count; ++b) {
          const uint32_t draw = kernels::bernoulli_draw(b, place, static_cast<int32_t>(head_dim_));
          element.successes +=
              draw_uniform(draws.row, draw) * 0x1p24f < static_cast<float>(element.threshold);
        }
      }
      elements.push_back(element);
    }
    return elements;
  }

  double error_of(std::span<const float> query, std::span<const Element> drawn) const {
    std::vector<double> difference;
    for (size_t i = 0; i < query.size(); ++i)
      difference.push_back(static_cast<double>(kernels::bernoulli_estimate(query[i], drawn[i])) -
                           static_cast<double>(query[i]));
    double of_difference = 0, of_scores = 0;
    for (size_t first = 0; first < keys_.size(); first += head_dim_) {
      double off = 0, score = 0;
      for (size_t i = 0; i < head_dim_; ++i) {
        off += difference[i] * static_cast<double>(keys_[first + i]);
        score += static_cast<double>(query[i]) * static_cast<double>(keys_[first + i]);
      }
      of_difference += off * off;
      of_scores += score * score;
    }
    return std::sqrt(of_difference / of_scores);
  }

  const BernoulliSetting& setting_;
  const int64_t number_;
  const size_t head_dim_;
  std::vector<float> queries_;      // [group, head_dim]
  std::vector<float> keys_;         // [keys, head_dim]
  std::vector<double> magnitudes_;  // of the group's mean query
  double norm_ = 0;                 // the largest of them
};

void check_setting(const BernoulliSetting& setting) {
  at_least_1("bernoulli: keys", setting.keys);
  at_least_1("bernoulli: head_dim", setting.head_dim);
  at_least_1("bernoulli: group", setting.group);
  at_least(2, "bernoulli: instances", setting.instances);
  check_budgets("bernoulli: budget", setting.budgets);
}

}  // namespace

std::vector<BernoulliError> measure_bernoulli(const BernoulliSetting& setting,
                                              const std::function<void(int64_t instances)>& progress,
                                              const std::atomic<bool>* stop) {
  check_setting(setting);
  std::vector<std::vector<BernoulliError>> instances(static_cast<size_t>(setting.instances));
  const auto measure = [&](int64_t number) {
    const BernoulliInstance instance(setting, number);
    for (const int64_t budget : setting.budgets)
      instances[static_cast<size_t>(number)].push_back(instance.estimate(budget));
  };
  if (!for_each_repetition(setting.instances, setting.threads, progress, stop, measure)) return {};
  const auto count = static_cast<double>(setting.instances);
  std::vector<BernoulliError> result;
  for (size_t b = 0; b < setting.budgets.size(); ++b) {
    BernoulliError mean{.budget = setting.budgets[b]};
    double squares = 0;
    for (const std::vector<BernoulliError>& of_instance : instances) {
      mean.error += of_instance[b].error / count;
      mean.features += of_instance[b].features / count;
      mean.sectors += of_instance[b].sectors / count;
    }
    for (const std::vector<BernoulliError>& of_instance : instances)
      squares += (of_instance[b].error - mean.error) * (of_instance[b].error - mean.error);
    mean.standard_error = std::sqrt(squares / (count - 1) / count);
    result.push_back(mean);
  }
  return result;
}

}  // namespace allot::evaluation
