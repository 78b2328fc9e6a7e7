// What the learner `auto` believes of the layers: the logit of a right answer is
//   b + (effect of the questions asked) - sum_l a_l h_l(s_l),
// where a_l > 0 says how much layer l matters and h_l how it suffers from few samples: one of a list of
// smooth falling curves that all layers share, or a step where the layer's own need is met
// (response_curves.h). Of the log a_l, those of most layers are drawn around one centre and those of a few
// around a higher one, and neighbouring layers may be alike: in which of the two they belong to, and in how
// far they lie from its centre. Centres, widths and how much neighbours say are unknown, too, so that layers
// stay equal until answers tell them apart. A Markov chain (Metropolis within Gibbs) walks over all unknowns;
// its states are draws from the posterior.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "policy/draws.h"
#include "policy/layer_costs.h"
#include "policy/response_curves.h"
#include "policy/response_likelihood.h"
#include "policy/schedule.h"

namespace allot::policy {

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
    std::vector<int32_t> needs;          // of the curves, [layers]
    size_t shape = 0;                    // of all curves
    double intercept = 0;                // b
    Population population;
    std::vector<double> group_effects;  // in the order in which groups were first added
  };

  // Expects layers to matter as much as they must for `start` to be nearly the best schedule; without entries
  // it expects nothing of the kind. Steps expect nothing of a start.
  ResponseModel(ResponseCurves::Form form, int layers, int64_t total, const Schedule& start = {});

  // A draw from the prior, with the intercept 0.
  State prior_draw(DrawStream& draws) const;
  // Adds `weight` times what each number of samples costs each layer of `state`. [layers][total + 1]
  void add_costs(const State& state, double weight, std::span<double> costs) const;
  // What samples cost each layer in the mean over `draws`, for other totals. Of smooth curves; requires a
  // draw and an outcome.
  LayerCosts costs(std::span<const State> draws) const;
  const ResponseCurves& curves() const { return curves_; }
  // Chance of a right answer to an average question under `schedule`, if `state` is true.
  double accuracy(const State& state, const Schedule& schedule) const;

  void add(ResponseOutcome outcome) { likelihood_.add(std::move(outcome)); }
  std::span<const ResponseOutcome> outcomes() const { return likelihood_.outcomes(); }
  // How much less than independent answers the answers within a group vary, above 0 and at most 1.
  void set_dispersion(double dispersion) { likelihood_.set_dispersion(dispersion); }
  // One sweep of the chain over all unknowns, from `state`. Groups that the state does not know yet start
  // without effect.
  void sweep(DrawStream& draws, State* state);

 private:
  // What densities need of a population, computed once for all layers.
  struct Terms {
    std::array<double, 2> widths = {};                      // of most layers, of the few
    std::array<double, 2> log_shares = {};                  // of the same
    std::array<std::array<double, 2>, 2> log_chances = {};  // of a layer, [its neighbour's place][its own]
    double variance = 1;                                    // of a distance beside a known neighbour
    double log_variance = 0;
  };

  // While the moves of a layer are tried.
  struct LayerMove {
    size_t layer = 0;
    Terms terms = {};
    std::array<double, 2> log_densities = {};  // of the prior, for each of the two places where it may belong
  };

  size_t count_layers() const { return static_cast<size_t>(layers_); }
  LayerCost cost(const State& state, size_t layer) const;
  void sweep_intercept(DrawStream& draws, State* state);
  void sweep_layer(DrawStream& draws, size_t layer, State* state);
  void try_layer(DrawStream& draws, double log_amplitude, int32_t need, LayerMove* move, State* state);
  double log_prior_of_need(int32_t need) const;
  int32_t draw_need(DrawStream& draws) const;
  double centre_of_prior() const;
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
  void sweep_shape(DrawStream& draws, State* state);
  // All layers at once: a change that they share takes single ones thousands of sweeps.
  void sweep_scale(DrawStream& draws, State* state);

  ResponseCurves::Form form_;
  int layers_;
  int64_t total_;
  double even_;  // total / layers
  ResponseCurves curves_;
  bool started_;  // a start says what to expect
  // What the start makes of the log amplitudes under each shape; 0 without one. [shapes][layers]
  std::vector<std::vector<double>> expected_;
  ResponseLikelihood likelihood_;
  std::vector<LayerCost> costs_;  // while a sweep begins, [layers]
};

}  // namespace allot::policy
