// Divergences that were measured on a model (`allot calibrate --measurements`) as a ground on which learners
// are rehearsed: a divergence model fitted to all of them, with as much noise as they have around it, more
// where a learner measures on fewer texts. Since `auto` fits a model of the same form, it finds what it
// expects here; the other learners do not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/divergence_model.h"
#include "policy/rehearsal.h"
#include "policy/schedule.h"

namespace allot::policy {

// Schedules measured on the same texts with the same draws.
struct RecordedBatch {
  std::vector<Schedule> schedules;
  std::vector<double> divergences;  // of each, nats
};

class RecordedDivergences {
 public:
  // For schedules of `total` with at least `floor` in each layer; a recorded measurement was on `texts`
  // texts. Throws InvalidArgument for fewer than two batches, no texts, where the even schedule is the best,
  // and where DivergenceModel::add does.
  RecordedDivergences(std::span<const RecordedBatch> batches, int64_t total, int32_t floor, int texts);

  int layers() const { return static_cast<int>(even_.samples.size()); }
  int64_t measurements() const { return model_.measurements(); }
  const Schedule& even() const { return even_; }
  const Schedule& best() const { return best_; }  // by the fitted model
  // Standard deviations of the log of a recorded measurement around the model: its own, and what a batch has
  // in common.
  double own_spread() const { return model_.residual(); }
  double batch_spread() const { return batch_spread_; }

  // What is expected on any texts, nats.
  double expected(const Schedule& schedule) const;
  // A measurement of it on `questions` texts: a function of its arguments alone, with the same part in common
  // for a group. Its deviations fall with the root of the number of texts.
  double measured(const Schedule& schedule, int64_t group, int questions, uint64_t seed) const;
  // Part of the way from the even to the best schedule, in -log of the divergence.
  double share_of_gap(const Schedule& schedule) const;

  // Every proposal measures divergences; accuracy() is share_of_gap().
  Ground ground(uint64_t seed) const;

 private:
  DivergenceModel model_;
  Schedule even_;
  Schedule best_;
  double batch_spread_ = 0;
  double texts_ = 0;  // of a recorded measurement
};

}  // namespace allot::policy
