#include "policy/state.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "policy/learner.h"

namespace allot::policy {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "allot-policy-1";

json to_json(const PolicyConfig& config) {
  json fields = {{"name", config.name},   {"layers", config.layers},
                 {"total", config.total}, {"floor", config.floor},
                 {"seed", config.seed},   {"max_policy_lag", config.max_policy_lag}};
  for (const Parameter& declared : find_learner(config.name)->parameters) {
    fields["parameters." + std::string(declared.name)] = parameter(config, declared.name);
  }
  // States of runs without bounds or a start, or of one kind, are as they were before there were any.
  if (!config.bounds.empty()) fields["bounds"] = config.bounds.to_string();
  if (!config.start.samples.empty()) fields["start"] = config.start.samples;
  if (config.divergence_episodes > 0) fields["divergence_episodes"] = config.divergence_episodes;
  return fields;
}

}  // namespace

std::string write_state(const PolicyConfig& config, json learner) {
  return json{{"format", kFormat}, {"config", to_json(config)}, {"learner", std::move(learner)}}.dump();
}

json read_state(const PolicyConfig& config, std::string_view text) {
  json state = json::parse(text, nullptr, /*allow_exceptions=*/false);
  require_state(state.is_object(), "it is not a JSON object");
  require_state(state.value("format", json()) == kFormat, "its format is " +
                                                              state.value("format", json()).dump() +
                                                              ", expected \"" + std::string(kFormat) + "\"");
  json expected = to_json(config);
  const json saved = state.value("config", json::object());
  for (const char* optional : {"bounds", "start", "divergence_episodes"}) expected.emplace(optional, json());
  std::string differences;
  for (const auto& [field, value] : expected.items()) {
    const json found = saved.is_object() ? saved.value(field, json()) : json();
    if (found == value) continue;
    differences += (differences.empty() ? "" : ", ") + field + " is " + found.dump() + " there and " +
                   value.dump() + " here";
  }
  require_state(differences.empty(), "it belongs to another configuration: " + differences);
  require_state(state.contains("learner") && state["learner"].is_object(), "it has no object \"learner\"");
  return std::move(state["learner"]);
}

void require_state(bool holds, const std::string& what) {
  if (!holds) throw CorruptFile("policy state cannot be restored: " + what + "; replay the history instead");
}

std::vector<double> read_logits(const json& learner, const char* field, int layers) {
  auto logits = learner.at(field).get<std::vector<double>>();
  require_state(
      std::ssize(logits) == layers && std::ranges::all_of(logits, [](double x) { return std::isfinite(x); }),
      std::string(field) + " holds " + std::to_string(logits.size()) + " numbers, expected " +
          std::to_string(layers) + " finite ones");
  return logits;
}

const json& read_list(const json& learner, const char* field) {
  const json& list = learner.at(field);
  require_state(list.is_array(), std::string(field) + " is no array");
  return list;
}

void check_reward(const Outcome& outcome) {
  if (!std::isfinite(outcome.reward)) {
    throw InvalidArgument("tell: the reward of proposal " + std::to_string(outcome.number) + " is " +
                          std::to_string(outcome.reward) + "; a finite number is expected");
  }
}

}  // namespace allot::policy
