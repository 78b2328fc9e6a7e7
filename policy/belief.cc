#include "policy/belief.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/json.h"
#include "policy/allocation.h"
#include "policy/learner.h"
#include "policy/response_state.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

using nlohmann::json;

// Common questions leave that share of the variance of independent answers, on surfaces with questions from
// easy to hard.
constexpr double kDispersion = 0.8;
// Draws that judge a proposal or are solved for a schedule of their own.
constexpr size_t kJudges = 32;

}  // namespace

Belief::Belief(ResponseCurves::Form form, const PolicyConfig& config, const Schedule& start, DrawStream draws)
    : layers_(config.layers),
      total_(config.total),
      floor_(config.floor),
      limits_(limits_of(config)),
      model_(form, config.layers, config.total, start) {
  model_.set_dispersion(kDispersion);
  for (size_t k = 0; k < kDraws; ++k) draws_.push_back(model_.prior_draw(draws));
  state_ = draws_.back();
}

void Belief::walk(size_t sweeps, DrawStream draws) {
  const size_t apart = std::max<size_t>(1, sweeps / 32);
  for (size_t k = 1; k <= sweeps; ++k) {
    model_.sweep(draws, &state_);
    if (k % apart != 0) continue;
    ResponseModel::State& draw = draws_[static_cast<size_t>(next_draw_++) % kDraws];
    draw = state_;
    draw.group_effects.clear();
  }
}

double Belief::log_predictive(std::span<const ResponseOutcome> outcomes) const {
  double sum = 0;
  for (const ResponseOutcome& outcome : outcomes) {
    const Schedule schedule{outcome.samples};
    const double right = outcome.reward * outcome.questions / kDispersion;
    const double wrong = (1 - outcome.reward) * outcome.questions / kDispersion;
    double mean = 0;
    for (const ResponseModel::State& draw : draws_) {
      const double accuracy = std::clamp(model_.accuracy(draw, schedule), 1e-6, 1 - 1e-6);
      mean += std::exp(right * std::log(accuracy) + wrong * std::log1p(-accuracy)) / kDraws;
    }
    sum += std::log(std::max(mean, 1e-300));
  }
  return sum;
}

Schedule Belief::best() const {
  std::vector<double> costs(static_cast<size_t>(layers_) * (static_cast<size_t>(total_) + 1));
  for (const ResponseModel::State& draw : draws_) model_.add_costs(draw, 1.0 / kDraws, costs);
  return cheapest_schedule(costs, layers_, total_, floor_, limits_);
}

std::vector<double> Belief::advantages(const Schedule& schedule, const Schedule& other) const {
  std::vector<double> all;
  for (const ResponseModel::State& draw : draws_) {
    all.push_back(model_.accuracy(draw, schedule) - model_.accuracy(draw, other));
  }
  return all;
}

double Belief::telling(const Schedule& schedule) const {
  double mean = 0;
  double square = 0;
  for (size_t k = 0; k < kDraws; k += kDraws / kJudges) {
    const double accuracy = model_.accuracy(draws_[k], schedule);
    mean += accuracy / kJudges;
    square += accuracy * accuracy / kJudges;
  }
  // The least variance keeps rounding from deciding where all draws expect nothing but wrong answers.
  return std::max(square - mean * mean, 0.0) / (mean * (1 - mean) + 1e-4);
}

double Belief::left_to_gain(const Schedule& schedule) const {
  std::vector<double> costs(static_cast<size_t>(layers_) * (static_cast<size_t>(total_) + 1));
  double left = 0;
  for (size_t k = 0; k < kDraws; k += kDraws / kJudges) {
    std::ranges::fill(costs, 0);
    model_.add_costs(draws_[k], 1, costs);
    const Schedule best = cheapest_schedule(costs, layers_, total_, floor_, limits_);
    left += (model_.accuracy(draws_[k], best) - model_.accuracy(draws_[k], schedule)) / kJudges;
  }
  return left;
}

json Belief::save() const {
  json draws = json::array();
  for (const ResponseModel::State& draw : draws_) draws.push_back(to_json(draw));
  return {{"state", to_json(state_)}, {"draws", std::move(draws)}, {"next_draw", next_draw_}};
}

void Belief::restore(const json& saved) {
  const auto read = [&](const json& entry) { return read_response_state(entry, layers_, model_.curves()); };
  state_ = read(saved.at("state"));
  draws_.clear();
  for (const json& entry : read_list(saved, "draws")) draws_.push_back(read(entry));
  require_state(draws_.size() == kDraws,
                "draws holds " + std::to_string(draws_.size()) + ", expected " + std::to_string(kDraws));
  next_draw_ = saved.at("next_draw");
  require_state(next_draw_ >= 0, "next_draw is " + std::to_string(next_draw_));
}

}  // namespace allot::policy
