#include "policy/recorded.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "policy/draws.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

constexpr int kFits = 3;

int layers_of(std::span<const RecordedBatch> batches) {
  if (batches.size() < 2 || batches.front().schedules.empty()) {
    throw InvalidArgument("recorded divergences: " + std::to_string(batches.size()) +
                          " batches; expected at least two, the first with a schedule");
  }
  return static_cast<int>(batches.front().schedules.front().samples.size());
}

// The mean of the logs of all schedules, as samples: the middle of what was measured. [layers]
std::vector<double> middle_of(std::span<const RecordedBatch> batches, size_t layers) {
  std::vector<double> logs(layers);
  double count = 0;
  for (const RecordedBatch& batch : batches) {
    for (const Schedule& schedule : batch.schedules) {
      for (size_t layer = 0; layer < layers; ++layer)
        logs[layer] += std::log(std::max(0.5, static_cast<double>(schedule.samples[layer])));
      ++count;
    }
  }
  for (double& log : logs) log = std::exp(log / count);
  return logs;
}

}  // namespace

RecordedDivergences::RecordedDivergences(std::span<const RecordedBatch> batches, int64_t total, int32_t floor,
                                         int texts)
    : model_(layers_of(batches), static_cast<double>(total) / layers_of(batches)),
      even_(even_schedule(layers_of(batches), total, floor)),
      texts_(texts) {
  if (texts < 1)
    throw InvalidArgument("recorded divergences: on " + std::to_string(texts) +
                          " texts; expected at least 1");
  for (const RecordedBatch& batch : batches) model_.add(batch.schedules, batch.divergences);
  // A fit starts from the residual of the one before.
  const std::vector<double> middle = middle_of(batches, even_.samples.size());
  for (int round = 0; round < kFits; ++round) model_.fit(middle);
  best_ = model_.best(total, floor);
  if (model_.log_divergence(best_) >= model_.log_divergence(even_)) {
    throw InvalidArgument("recorded divergences: at a total of " + std::to_string(total) +
                          " the even schedule is the best, so that there is nothing to learn; expected "
                          "another total, or measurements that tell layers apart");
  }
  double squares = 0;
  for (const RecordedBatch& batch : batches) {
    double off = 0;
    for (size_t i = 0; i < batch.schedules.size(); ++i)
      off += std::log(batch.divergences[i]) - model_.log_divergence(batch.schedules[i]);
    off /= static_cast<double>(batch.schedules.size());
    squares += off * off;
  }
  batch_spread_ = std::sqrt(squares / static_cast<double>(batches.size()));
}

double RecordedDivergences::expected(const Schedule& schedule) const {
  return std::exp(model_.log_divergence(schedule));
}

double RecordedDivergences::measured(const Schedule& schedule, int64_t group, int questions,
                                     uint64_t seed) const {
  DrawStream common(seed, static_cast<uint64_t>(group), draw_purpose("recorded-batch"));
  DrawStream own(seed, StateDigest().add(schedule.to_string()).add(group).value(),
                 draw_purpose("recorded-own"));
  const double off = batch_spread() * standard_normal(common) + own_spread() * standard_normal(own);
  return std::exp(model_.log_divergence(schedule) + off * std::sqrt(texts_ / questions));
}

double RecordedDivergences::share_of_gap(const Schedule& schedule) const {
  const double even = model_.log_divergence(even_);
  return (even - model_.log_divergence(schedule)) / (even - model_.log_divergence(best_));
}

Ground RecordedDivergences::ground(uint64_t seed) const {
  return {.chance = {},
          .accuracy = [this](const Schedule& schedule) { return share_of_gap(schedule); },
          .divergence = [this, seed](const Schedule& schedule, int64_t group,
                                     int questions) { return measured(schedule, group, questions, seed); },
          .kind = RewardKind::kDivergence};
}

}  // namespace allot::policy
