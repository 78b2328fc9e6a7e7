#include "policy/learner.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "policy/multinomial.h"

namespace allot::policy {

std::string option_name(const Parameter& parameter) {
  std::string name(parameter.name);
  std::ranges::replace(name, '_', '-');
  return name;
}

bool accepts(const Parameter& parameter, double value) {
  return value >= parameter.least && value <= parameter.most &&
         (!parameter.whole || value == std::floor(value));
}

std::string expected_values(const Parameter& parameter) {
  std::ostringstream text;
  text.precision(12);
  text << (parameter.whole ? "a whole number from " : "from ") << parameter.least << " to " << parameter.most;
  return text.str();
}

const Parameter* Learner::find(std::string_view parameter) const {
  const auto found = std::ranges::find(parameters, parameter, &Parameter::name);
  return found == parameters.end() ? nullptr : &*found;
}

const Learner* find_learner(std::string_view name) {
  const auto found = std::ranges::find(learners(), name, &Learner::name);
  return found == learners().end() ? nullptr : *found;
}

std::optional<int64_t> useful_in_flight(const PolicyConfig& config, int64_t outcomes_per_update) {
  // Beyond it nobody could hold so many, and the product could overflow.
  constexpr int64_t kMostVersions = 1'000'000'000;
  if (config.max_policy_lag > kMostVersions) return std::nullopt;
  return (config.max_policy_lag + 1) * outcomes_per_update;
}

double parameter(const PolicyConfig& config, std::string_view name) {
  const Learner* learner = find_learner(config.name);
  const Parameter* declared = learner == nullptr ? nullptr : learner->find(name);
  if (declared == nullptr) {
    throw std::logic_error("'" + config.name + "' declares no parameter '" + std::string(name) + "'");
  }
  const auto given = config.parameters.find(std::string(name));
  return given == config.parameters.end() ? declared->initial : given->second;
}

Limits limits_of(const PolicyConfig& config) {
  return limits_of(config.bounds, config.layers, config.total, config.floor);
}

Schedule apportion(std::span<const double> shares, const PolicyConfig& config) {
  return apportion(shares, config.total, config.floor, limits_of(config));
}

Schedule start_schedule(const PolicyConfig& config) {
  if (!config.start.samples.empty()) return config.start;
  return apportion(std::vector<double>(static_cast<size_t>(config.layers), 1.0), config);
}

std::vector<double> start_logits(const PolicyConfig& config) {
  std::vector<double> logits(static_cast<size_t>(config.layers));
  if (config.start.samples.empty() || config.total == int64_t{config.layers} * config.floor) return logits;
  for (double least = 0.5;; least /= 2) {
    double mean = 0;
    for (size_t layer = 0; layer < logits.size(); ++layer) {
      logits[layer] = std::log(std::max<double>(config.start.samples[layer] - config.floor, least));
      mean += logits[layer] / config.layers;
    }
    for (double& logit : logits) logit -= mean;
    // The less such layers have, the less of a sample they take from the others; 2^-20 is far below what
    // rounding can show.
    if (least < 0x1p-20 || apportion(softmax(logits), config) == config.start) return logits;
  }
}

}  // namespace allot::policy
