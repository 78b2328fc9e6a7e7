// What the learner `auto` believes of the layers: the logit of a right answer is
//   b + (effect of the questions asked) - sum_l a_l h(s_l),
// where a_l > 0 says how much layer l matters and h, one of a list of falling curves, how all layers suffer
// from few samples. Of the log a_l, those of most layers are drawn around one centre and those of a few
// around a higher one, and neighbouring layers may be alike: in which of the two they belong to, and in how
// far they lie from its centre. Centres, widths and how much neighbours say are unknown, too, so that layers
// stay equal until answers tell them apart. A Markov chain (Metropolis within Gibbs) walks over all unknowns;
// its states are draws from the posterior.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policy/draws.h"
#include "policy/schedule.h"

namespace allot::policy {

// The curves that layers may have, from the straightest to the most bent, as tables over 0..total samples.
// Each is 0 at the even part total / layers, and half the even part costs 1 more.
class ResponseCurves {
 public:
  ResponseCurves(int layers, int64_t total);

  size_t count() const { return table_.size() / length_; }
  std::span<const double> curve(size_t number) const { return {table_.data() + number * length_, length_}; }

 private:
  size_t length_;
  std::vector<double> table_;  // [count][total + 1]
};

struct ResponseOutcome {
  std::vector<int32_t> samples;  // [layers]
  int64_t group = 0;             // outcomes of a group were scored on the same questions
  double reward = 0;             // mean score
  double questions = 1;          // that it is the mean of
};

class ResponseModel {
 public:
  // What is unknown of the log amplitudes as a whole.
  struct Population {
    double centre = 0;            // of most layers
    double gap = 0;               // how much higher the centre of the others is, at least 0
    double log_width = 0;         // log of the standard deviation of most layers
    double log_width_of_few = 0;  // and of the others
    double share_of_few = 0;      // logit of the share of the others
    double alike = 0;             // correlation of neighbours' distances from their centres
    double together = 0;          // chance that a layer is where its neighbour is, whatever the share
  };
  struct State {
    std::vector<double> log_amplitudes;  // [layers]
    std::vector<int32_t> few;            // 1: around the higher centre, else 0, [layers]
    size_t curve = 0;                    // of all layers
    double intercept = 0;                // b
    Population population;
    std::vector<double> group_effects;  // in the order in which groups were first added
  };

  // Expects layers to matter as much as they must for `start` to be nearly the best schedule; without entries
  // it expects nothing of the kind.
  ResponseModel(int layers, int64_t total, const Schedule& start = {});

  // A draw from the prior, with the intercept 0.
  State prior_draw(DrawStream& draws) const;
  // Adds `weight` times what each number of samples costs each layer of `state`. [layers][total + 1]
  void add_costs(const State& state, double weight, std::span<double> costs) const;
  const ResponseCurves& curves() const { return curves_; }
  // Chance of a right answer to an average question under `schedule`, if `state` is true.
  double accuracy(const State& state, const Schedule& schedule) const;

  void add(ResponseOutcome outcome);
  std::span<const ResponseOutcome> outcomes() const { return outcomes_; }
  // How much less than independent answers the answers within a group vary, above 0 and at most 1.
  void set_dispersion(double dispersion) { dispersion_ = dispersion; }
  // One sweep of the chain over all unknowns, from `state`. Groups that the state does not know yet start
  // without effect.
  void sweep(DrawStream& draws, State* state);

 private:
  struct LayerCurve {
    double log_amplitude = 0;
    size_t curve = 0;
  };

  // What densities need of a population, computed once for all layers.
  struct Terms {
    std::array<double, 2> widths = {};                      // of most layers, of the few
    std::array<double, 2> log_shares = {};                  // of the same
    std::array<std::array<double, 2>, 2> log_chances = {};  // of a layer, [its neighbour's place][its own]
    double variance = 1;                                    // of a distance beside a known neighbour
    double log_variance = 0;
  };

  void compute_odds(const State& state);
  double log_wrong(std::span<const double> odds) const;
  void multiply(size_t layer, std::span<const double> from, std::vector<double>* to) const;
  // Fills change_ with what a change of a layer does to the logits, by samples; its mean over the outcomes.
  double mean_change(size_t layer, LayerCurve from, LayerCurve to);
  // Fills factors_ from change_ + shift; how much the log-likelihood of the right answers changes.
  double set_factors(size_t layer, double shift);
  // Accepts or rejects moved_.
  bool take(DrawStream& draws, double log_right, double log_prior);
  void sweep_intercept(DrawStream& draws, State* state);
  void sweep_groups(DrawStream& draws, State* state);
  void sweep_layer(DrawStream& draws, size_t layer, State* state);
  void sweep_population(DrawStream& draws, State* state) const;
  void sweep_likeness(DrawStream& draws, State* state) const;
  // Log densities of the prior: of all layers under a population, of the population itself, and of `layer` at
  // `log_amplitude` between its neighbours, for each of the two places where it may belong.
  double log_density(const State& state, const Population& population) const;
  double log_density(const Population& population) const;
  double log_prior_of_centre(double centre) const;
  std::array<double, 2> log_densities_of_layer(const State& state, const Terms& terms, size_t layer,
                                               double log_amplitude) const;
  static Terms terms_of(const Population& population);
  static double log_density_beside(double neighbour, double distance, double alike, const Terms& terms);
  // How far the layer lies from the centre where it belongs, in widths.
  double distance(const State& state, const Population& population, const Terms& terms, size_t layer) const;
  void sweep_curve(DrawStream& draws, State* state);
  // All layers at once: a change that they share takes single ones thousands of sweeps.
  void sweep_scale(DrawStream& draws, State* state);

  int layers_;
  int64_t total_;
  ResponseCurves curves_;
  bool started_;  // a start says what to expect
  // What the start makes of the log amplitudes under each curve; 0 without one. [curves][layers]
  std::vector<std::vector<double>> expected_;
  std::vector<ResponseOutcome> outcomes_;
  double dispersion_ = 1;
  std::vector<std::vector<uint16_t>> samples_;  // [layers][outcomes]
  std::vector<double> right_;                   // answers, [outcomes]
  std::vector<double> questions_;               // [outcomes]
  std::vector<size_t> blocks_;               // the first outcomes of up to 16 of as many questions, in order
  std::vector<size_t> group_of_;             // [outcomes]
  std::vector<std::vector<size_t>> groups_;  // their outcomes
  std::vector<std::pair<int64_t, size_t>> group_index_;
  std::vector<std::vector<double>> right_by_samples_;  // [layers][total + 1]
  std::vector<std::vector<int32_t>> seen_;             // outcomes with so many samples, [layers][total + 1]
  double sum_of_right_ = 0;
  // While a sweep runs.
  std::vector<double> odds_;  // of a right answer, [outcomes]
  std::vector<double> moved_;
  double log_wrong_ = 0;         // of odds_
  std::vector<double> change_;   // [total + 1]
  std::vector<double> factors_;  // [total + 1]
};

}  // namespace allot::policy
