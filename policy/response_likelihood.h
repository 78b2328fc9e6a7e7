// The likelihood of answers under a model in which the logit of a right answer is a sum over layers: what a
// Markov chain over such a model needs of the outcomes. Moves are tried on all outcomes at once and then
// taken or left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policy/draws.h"

namespace allot::policy {

struct ResponseOutcome {
  std::vector<int32_t> samples;  // [layers]
  int64_t group = 0;             // outcomes of a group were scored on the same questions
  double reward = 0;             // mean score
  double questions = 1;          // that it is the mean of
};

// What a layer takes from the logit: amplitude * curve[samples].
struct LayerCost {
  double amplitude = 0;
  std::span<const double> curve;  // [total + 1]
};

// Metropolis: whether a move of that log ratio of densities is taken. One draw.
bool accepted(DrawStream& draws, double log_ratio);

class ResponseLikelihood {
 public:
  ResponseLikelihood(int layers, int64_t total);

  void add(ResponseOutcome outcome);
  std::span<const ResponseOutcome> outcomes() const { return outcomes_; }
  size_t num_groups() const { return groups_.size(); }
  // How much less than independent answers the answers within a group vary, above 0 and at most 1.
  void set_dispersion(double dispersion) { dispersion_ = dispersion; }

  // The logits from which moves start: intercept + effect of the outcome's group - what the layers take.
  // `group_effects` are in the order in which groups were first added; `costs` [layers].
  void begin(double intercept, std::span<const double> group_effects, std::span<const LayerCost> costs);
  // Tries another cost of a layer, and a shift of all logits by which their mean stays; the shift. Tried
  // moves add up until take().
  double try_layer(size_t layer, const LayerCost& from, const LayerCost& to);
  // Tries a shift of all logits.
  void try_shift(double shift);
  // Takes what was tried, or goes back to where it was; `log_prior` is the change of the prior's log density.
  bool take(DrawStream& draws, double log_prior);
  // A move of the effect of each group, each taken or left by itself; changes `group_effects`.
  void move_groups(DrawStream& draws, std::span<double> group_effects);

 private:
  double log_wrong(std::span<const double> odds) const;

  std::vector<ResponseOutcome> outcomes_;
  double dispersion_ = 1;
  std::vector<std::vector<uint16_t>> samples_;  // [layers][outcomes]
  std::vector<double> right_;                   // answers, [outcomes]
  std::vector<double> questions_;               // [outcomes]
  std::vector<size_t> blocks_;               // the first outcomes of up to 16 of as many questions, in order
  std::vector<size_t> group_of_;             // [outcomes]
  std::vector<std::vector<size_t>> groups_;  // their outcomes
  std::vector<std::pair<int64_t, size_t>> group_index_;
  std::vector<std::vector<double>> right_by_samples_;  // right answers by samples, [layers][total + 1]
  std::vector<std::vector<int32_t>> seen_;             // outcomes by samples, [layers][total + 1]
  double sum_of_right_ = 0;
  std::vector<double> odds_;  // of a right answer, [outcomes]
  double log_wrong_ = 0;      // of odds_
  // Tried and not yet taken or left.
  bool tried_ = false;
  std::vector<double> moved_;
  double log_right_ = 0;
  // By samples, while a layer is tried. [total + 1]
  std::vector<double> change_;
  std::vector<double> factors_;
};

}  // namespace allot::policy
