// What a learner believes of the layers after the answers so far: draws from the posterior of a response
// model (policy/response_model.h), and what they say of schedules.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "policy/policy.h"
#include "policy/response_model.h"

namespace allot::policy {

class Belief {
 public:
  static constexpr size_t kDraws = 128;

  // Before any answer: draws from the prior, a function of `draws`. `start` as of ResponseModel.
  Belief(ResponseCurves::Form form, const PolicyConfig& config, const Schedule& start, DrawStream draws);

  void add(const ResponseOutcome& outcome) { model_.add(outcome); }
  std::span<const ResponseOutcome> outcomes() const { return model_.outcomes(); }
  // Makes `sweeps` more sweeps over all outcomes; the newest states replace the oldest draws.
  void walk(size_t sweeps, DrawStream draws);

  // Log of the chance, on average over the draws, of rewards of outcomes that were not added yet, each by
  // itself; without the binomial coefficients, which are the same for every model.
  double log_predictive(std::span<const ResponseOutcome> outcomes) const;
  // The schedule that is the best on average over the draws.
  Schedule best() const;
  // How much better `schedule` is than `other`, in accuracy, by each draw. [kDraws]
  std::vector<double> advantages(const Schedule& schedule, const Schedule& other) const;
  // How much the draws disagree about the accuracy of `schedule`, measured by what chance alone spreads it:
  // answers to it tell the more, the larger this is.
  double telling(const Schedule& schedule) const;
  // How much better than `schedule` each draw's own best schedule is, in accuracy, on average.
  double left_to_gain(const Schedule& schedule) const;

  // What samples cost each layer on average over the draws, for other totals. Of smooth curves, after an
  // outcome.
  LayerCosts costs() const { return model_.costs(draws_); }

  // Of the chain; for digests.
  const ResponseModel::State& state() const { return state_; }
  nlohmann::json save() const;
  // Into a belief of the same configuration, form and start to which the same outcomes were added. May throw
  // what nlohmann::json or the checks of policy/state.h throw.
  void restore(const nlohmann::json& saved);

 private:
  int layers_;
  int64_t total_;
  int32_t floor_;
  Limits limits_;
  ResponseModel model_;
  ResponseModel::State state_;               // of the chain
  std::vector<ResponseModel::State> draws_;  // without effects of groups, [kDraws]
  int64_t next_draw_ = 0;
};

}  // namespace allot::policy
