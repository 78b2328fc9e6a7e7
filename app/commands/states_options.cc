#include "app/commands/states_options.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "app/cli/version.h"
#include "app/commands/seed_and_threads.h"
#include "app/files/schedule_argument.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"

namespace allot::app {

void StatesOptions::add(OptionSet& set) {
  set.texts(
      "states", &names_, "FILE",
      "states of a model's last token instead of random ones, as allot_attention.recording writes them; keys, "
      "head-dim, heads and score-deviation are theirs then. May be given several times, for texts of one length");
  set.choice("layers", &layers_, {"all", "last"}, "layers of --states that are measured");
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
  if (names_.empty() && layers_ != "all")
    throw UsageError("--layers last needs --states FILE: random states have no layers");
  for (const std::string& name : names_) {
    const evaluation::AttentionStates& read = files_.emplace_back(name).states();
    if (files_.size() > 1 && (read.heads != states_.heads || read.kv_heads != states_.kv_heads ||
                              read.keys != states_.keys || read.head_dim != states_.head_dim)) {
      throw CorruptFile(fmt::format(
          "{}: {} query and {} KV heads, {} keys of {} elements, but {} has {}, {}, {} and {}; states of one "
          "shape are expected",
          name, read.heads, read.kv_heads, read.keys, read.head_dim, names_.front(), states_.heads,
          states_.kv_heads, states_.keys, states_.head_dim));
    }
    std::vector<evaluation::AttentionStates::Layer> layers = std::move(states_.layers);
    layers.insert(layers.end(), layers_ == "last" ? read.layers.end() - 1 : read.layers.begin(),
                  read.layers.end());
    states_ = read;
    states_.layers = std::move(layers);
  }
  if (!names_.empty()) {
    setting_.states = &states_;
    setting_ = evaluation::with_numbers_of_states(setting_);
  }
  return setting_;
}

std::string StatesOptions::description() const {
  const std::string heads =
      fmt::format("means of {} heads with {} estimates each", setting_.heads, setting_.replicates);
  if (!names_.empty()) {
    return fmt::format("a text's last token over {} keys, {}: {}, values of {} elements; {}", setting_.keys,
                       fmt::join(names_, ", "),
                       layers_ == "last" ? "last layer" : fmt::format("{} layers", states_.layers.size()),
                       setting_.head_dim, heads);
  }
  return fmt::format(
      "a query over {} keys, scores of standard deviation {}, standard normal values of {} elements; {}",
      setting_.keys, setting_.score_deviation, setting_.head_dim, heads);
}

nlohmann::ordered_json StatesOptions::json() const {
  nlohmann::ordered_json json = {
      {"states", nullptr},
      {"layers", nullptr},
      {"keys", setting_.keys},
      {"head_dim", setting_.head_dim},
      {"score_deviation", nullptr},
      {"heads", setting_.heads},
      {"replicates", setting_.replicates},
      {"seed", setting_.seed},
      {"tool_version", version()},
  };
  if (names_.empty()) {
    json["score_deviation"] = setting_.score_deviation;
  } else {
    json["states"] = names_;
    json["layers"] = layers_;
  }
  return json;
}

nlohmann::ordered_json StatesOptions::json(evaluation::Spacing spacing) const {
  nlohmann::ordered_json row = json();
  row["estimator"] = evaluation::name(spacing);
  return row;
}

}  // namespace allot::app
