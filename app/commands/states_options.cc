#include "app/commands/states_options.h"

#include <spdlog/fmt/fmt.h>

#include "app/cli/version.h"
#include "app/commands/seed_and_threads.h"
#include "app/files/schedule_argument.h"
#include "base/json.h"
#include "bench/output.h"

namespace allot::app {

void StatesOptions::add(OptionSet& set) {
  set.text(
      "states", &file_, "FILE",
      "states of a model's last token instead of random ones, as allot_attention.recording writes them; keys, "
      "head-dim, heads and score-deviation are theirs then");
  set.integer("keys", &setting_.keys, 1, 1 << 24, "N", "keys that the query sees");
  set.text("samples", &samples_, "S,…", "samples of the query");
  set.real("score-deviation", &setting_.score_deviation, 0, 100, "X",
           "standard deviation of the scores: 1 is flat, larger is more peaked");
  set.integer("head-dim", &setting_.head_dim, 1, 1 << 16, "N", "elements of a value");
  set.integer("heads", &setting_.heads, 1, 1 << 20, "N",
              "heads that are averaged, each with scores and values of its own");
  set.integer("replicates", &setting_.replicates, 2, 1 << 24, "N", "estimates of each head");
  declare_seed_and_threads(&set, &seed_, &setting_.threads);
}

const evaluation::VarianceSetting& StatesOptions::setting() {
  setting_.seed = static_cast<uint32_t>(seed_);
  setting_.samples = parse_totals(samples_, "--samples");
  if (!file_.empty()) {
    states_.emplace(file_);
    setting_.states = &states_->states();
    setting_ = evaluation::with_numbers_of_states(setting_);
  }
  return setting_;
}

std::string StatesOptions::description() const {
  const std::string heads =
      fmt::format("means of {} heads with {} estimates each", setting_.heads, setting_.replicates);
  if (states_) {
    return fmt::format("a text's last token over {} keys, {}: {} layers, values of {} elements; {}",
                       setting_.keys, file_, states_->states().layers.size(), setting_.head_dim, heads);
  }
  return fmt::format(
      "a query over {} keys, scores of standard deviation {}, standard normal values of {} elements; {}",
      setting_.keys, setting_.score_deviation, setting_.head_dim, heads);
}

nlohmann::ordered_json StatesOptions::json(evaluation::Spacing spacing) const {
  nlohmann::ordered_json json = {
      {"states", nullptr},          {"keys", setting_.keys},     {"head_dim", setting_.head_dim},
      {"score_deviation", nullptr}, {"heads", setting_.heads},   {"replicates", setting_.replicates},
      {"seed", setting_.seed},      {"tool_version", version()}, {"estimator", evaluation::name(spacing)}};
  if (states_) {
    json["states"] = file_;
  } else {
    json["score_deviation"] = setting_.score_deviation;
  }
  return json;
}

}  // namespace allot::app
