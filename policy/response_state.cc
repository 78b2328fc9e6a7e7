#include "policy/response_state.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/json.h"
#include "policy/state.h"

namespace allot::policy {

using nlohmann::json;

namespace {

bool all_finite(const std::vector<double>& numbers) {
  return std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
}

}  // namespace

json to_json(const ResponseModel::State& state) {
  const ResponseModel::Population& of_all = state.population;
  return {{"log_amplitudes", state.log_amplitudes},
          {"few", state.few},
          {"needs", state.needs},
          {"shape", state.shape},
          {"intercept", state.intercept},
          {"population",
           {of_all.centre, of_all.gap, of_all.log_width, of_all.log_width_of_few, of_all.share_of_few,
            of_all.alike, of_all.together}},
          {"group_effects", state.group_effects}};
}

ResponseModel::State read_response_state(const json& entry, int layers, const ResponseCurves& curves) {
  const json& of_all = entry.at("population");
  ResponseModel::State draw{.log_amplitudes = entry.at("log_amplitudes"),
                            .few = entry.at("few"),
                            .needs = entry.at("needs"),
                            .shape = entry.at("shape"),
                            .intercept = entry.at("intercept"),
                            .population = {.centre = of_all.at(0),
                                           .gap = of_all.at(1),
                                           .log_width = of_all.at(2),
                                           .log_width_of_few = of_all.at(3),
                                           .share_of_few = of_all.at(4),
                                           .alike = of_all.at(5),
                                           .together = of_all.at(6)},
                            .group_effects = entry.at("group_effects")};
  const bool marked = draw.few.size() == draw.log_amplitudes.size() &&
                      std::ranges::all_of(draw.few, [](int32_t few) { return few == 0 || few == 1; });
  const auto most = static_cast<int32_t>(curves.needs()) - 1;
  const bool needed = std::ssize(draw.needs) == layers && std::ranges::all_of(draw.needs, [&](int32_t need) {
                        return need >= 0 && need <= most;
                      });
  require_state(std::ssize(draw.log_amplitudes) == layers && marked && needed &&
                    all_finite(draw.log_amplitudes) && all_finite(draw.group_effects) &&
                    draw.shape < curves.shapes(),
                "a draw of the posterior is " + entry.dump());
  return draw;
}

json to_json(std::span<const ResponseOutcome> outcomes) {
  json list = json::array();
  for (const ResponseOutcome& outcome : outcomes) {
    list.push_back({outcome.samples, outcome.group, outcome.reward, outcome.questions});
  }
  return list;
}

std::vector<ResponseOutcome> read_outcomes(const json& learner, const char* field,
                                           const PolicyConfig& config) {
  std::vector<ResponseOutcome> outcomes;
  for (const json& entry : read_list(learner, field)) {
    ResponseOutcome outcome{
        .samples = entry.at(0), .group = entry.at(1), .reward = entry.at(2), .questions = entry.at(3)};
    check_schedule({outcome.samples}, config.layers, config.floor, config.total);
    require_state(std::isfinite(outcome.reward) && outcome.questions >= 1 && outcome.group >= 0,
                  std::string(field) + " holds " + entry.dump());
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace allot::policy
