// Learns a schedule from divergences alone: measures schedules around a centre, in mirrored pairs in which
// all layers differ, fits a model to all that was measured, and moves the centre towards the model's best
// schedule. A divergence on common texts and draws has little noise, so a few hundred measurements settle a
// schedule. No I/O; the caller measures.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/bounds.h"
#include "policy/divergence_model.h"
#include "policy/perturbation.h"
#include "policy/schedule.h"

namespace allot::policy {

struct DivergenceSearchOptions {
  int layers = 0;
  int64_t total = 0;
  int32_t floor = 1;
  Limits limits = {};  // that every schedule keeps besides
  uint64_t seed = 0;
  int steps = 40;  // batches of schedules
  int pairs = 8;   // of a batch
};

// The model's best schedule of `total` samples within the limits.
Schedule best_within(const DivergenceModel& model, int64_t total, int32_t floor, const Limits& limits);

class DivergenceSearch {
 public:
  // Starts at `start`, or where there is none at the even schedule. The model may know measurements of other
  // totals already, and outlives the search. Throws InvalidArgument naming the option, its value and what was
  // expected, and for a start that does not fit.
  DivergenceSearch(const DivergenceSearchOptions& options, DivergenceModel* model,
                   const std::optional<Schedule>& start = {});

  bool done() const { return step_ == options_.steps; }
  int step() const { return step_; }
  // The 2 * pairs schedules of the next batch; the same until they are told. Not when done().
  std::vector<Schedule> ask() const { return batch(step_); }
  // Their divergences, measured on the same texts with the same draws. Errors as of DivergenceModel::add.
  void tell(std::span<const double> divergences) { tell(ask(), divergences); }

  // For a caller who has several batches out at once. The schedules of batch `number` (below steps) around
  // the present centre: [2 * pairs], the halves of a pair side by side.
  std::vector<Schedule> batch(int number) const;
  // What came of a batch, in any order of the batches; nothing where all of it was lost, which is a step that
  // does not move.
  void tell(std::span<const Schedule> schedules, std::span<const double> divergences);
  // From now on schedules keep these limits in place of those before.
  void bound(const Limits& limits);
  // The schedule at the present centre; the start before it moved.
  Schedule centre() const;

  // Schedules that may be the best, each once: the even one, the start, the mean of the centres of the later
  // steps, and what the model holds for the best. The caller measures them again and takes the best.
  std::vector<Schedule> candidates() const;

 private:
  double spread() const;                   // samples above the floor, of all layers
  double log_above(double samples) const;  // of samples above the floor, within reach of perturbations
  // The samples above the floor that these logs stand for, [layers].
  std::vector<double> amounts(std::span<const double> logs) const;
  void move();
  // The even schedule and the model's best one, as close as the limits let them be; and the best one of those
  // between `least` and `most` samples, both [layers].
  Schedule even() const;
  Schedule best() const;
  Schedule best_between(std::vector<int32_t> least, std::vector<int32_t> most) const;
  // These shares of the budget as a schedule within the limits.
  Schedule dealt(std::span<const double> shares) const;

  DivergenceSearchOptions options_;
  DivergenceModel* model_;
  Schedule start_;
  int step_ = 0;
  bool moved_ = false;
  // Logs of the samples above the floor, but for a constant. [layers]
  std::vector<double> logs_;
  std::vector<double> sum_of_logs_;  // over the later steps
  int later_steps_ = 0;
};

}  // namespace allot::policy
