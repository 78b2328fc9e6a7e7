#include "evaluation/ablation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

// Version 3 has exact layers in the base, version 4 KV heads; what has neither is written as version 2.
constexpr int kSchemaVersion = 4;

int schema_version_of(const Ablation& ablation) {
  if (ablation.kv_heads > 0) return kSchemaVersion;
  return exact_layers(ablation.base.samples) > 0 ? 3 : 2;
}

// Version 1 has a few of the conditions as fields of its own; the others are not known.
Conditions read_version_1(JsonFields& fields, const Ablation& ablation, std::vector<std::string>* faults) {
  constexpr auto kUint32Max = std::numeric_limits<uint32_t>::max();
  Json json = unknown_conditions();
  json["model"]["id"] = fields.text("model");
  json["model"]["weights_fingerprint"] = fields.text("weights_fingerprint");
  json["model"]["layers"] = ablation.base.samples.size();
  json["task"] = {{"name", fields.text("task")},
                  {"version", fields.integer<int32_t>("task_version", 1)},
                  {"prompt_style", fields.text("prompt_style")}};
  json["measured_on"] = {{"sha256", fields.text("data_sha256")},
                         {"questions", ablation.base_accuracy.questions}};
  json["attention"]["estimator"] = fields.text("estimator");
  json["attention"]["prefill"] = fields.text("prefill");
  json["generation"]["dtype"] = fields.text("dtype");
  json["seed"] = fields.integer<int64_t>("seed", 0, kUint32Max);
  return read_conditions(json, "conditions", faults);
}

// The entry at `place`, of an ablation of whole layers or, with kv_heads above 0, of these.
LayerAblation read_layer(const Json& object, int32_t place, int32_t kv_heads,
                         std::vector<std::string>* faults) {
  JsonFields fields(object, fmt::format("layers[{}]", place), faults);
  const int32_t layer = kv_heads > 0 ? place / kv_heads : place;
  const auto expect = [&](const char* name, int32_t expected) {
    if (const auto named = fields.integer<int32_t>(name, 0); named != expected)
      fields.fault(fmt::format("{} is {}, expected {}: layers and their heads are listed in order",
                               fields.where(name), named, expected));
  };
  expect("layer", layer);
  if (kv_heads > 0) expect("kv_head", place % kv_heads);
  LayerAblation read{.layer = layer, .kv_head = kv_heads > 0 ? place % kv_heads : -1};
  read.accuracy = read_accuracy(fields);
  read.drop = fields.real("drop", -1, 1);
  std::tie(read.drop_interval.low, read.drop_interval.high) = fields.interval("drop_interval_95", -1, 1);
  read.p_value = fields.real("p_value", 0, 1);
  return read;
}

}  // namespace

policy::Schedule one_hot(const policy::Schedule& base, int layer) {
  if (layer < 0 || layer >= static_cast<int>(base.samples.size()))
    throw InvalidArgument(
        fmt::format("ablation of layer {} of a schedule with {} layers", layer, base.samples.size()));
  policy::Schedule schedule = base;
  schedule.samples[static_cast<size_t>(layer)] = 1;
  return schedule;
}

policy::Schedule one_hot_head(const policy::Schedule& base, int layer, int kv_head, int num_kv_heads) {
  (void)one_hot(base, layer);  // refuses a layer that is not there
  if (kv_head < 0 || kv_head >= num_kv_heads)
    throw InvalidArgument(
        fmt::format("ablation of KV head {} of layers with {} KV heads", kv_head, num_kv_heads));
  policy::Schedule schedule;
  for (const int32_t samples : base.samples)
    schedule.samples.insert(schedule.samples.end(), static_cast<size_t>(num_kv_heads), samples);
  schedule.samples[static_cast<size_t>(layer) * static_cast<size_t>(num_kv_heads) +
                   static_cast<size_t>(kv_head)] = 1;
  return schedule;
}

Ablation make_ablation(Conditions conditions, policy::Schedule base, std::span<const double> base_scores,
                       const std::vector<std::vector<double>>& layer_scores, int32_t kv_heads) {
  if (layer_scores.size() != base.samples.size() * static_cast<size_t>(std::max(kv_heads, 1)))
    throw InvalidArgument(fmt::format("ablation: {} lists of scores for a base schedule of {} layers{}",
                                      layer_scores.size(), base.samples.size(),
                                      kv_heads > 0 ? fmt::format(" with {} KV heads", kv_heads) : ""));
  Ablation ablation{.conditions = std::move(conditions),
                    .tool_version = {},
                    .base = std::move(base),
                    .base_accuracy = accuracy_of(base_scores),
                    .kv_heads = kv_heads,
                    .layers = {}};
  for (const std::vector<double>& scores : layer_scores) {
    const PairedTest drop = compare_scores(base_scores, scores);
    const auto place = static_cast<int32_t>(ablation.layers.size());
    ablation.layers.push_back({.layer = kv_heads > 0 ? place / kv_heads : place,
                               .kv_head = kv_heads > 0 ? place % kv_heads : -1,
                               .accuracy = accuracy_of(scores),
                               .drop = drop.difference,
                               .drop_interval = drop.interval,
                               .p_value = drop.p_value});
  }
  return ablation;
}

std::vector<Difference> differences_from_run(const Conditions& ablation, const Conditions& run) {
  std::vector<Difference> found = decisive_differences(ablation, run);
  const bool on_training =
      ablation.measured_on && run.learned_on && ablation.measured_on->sha256 == run.learned_on->sha256;
  if (on_training)
    std::erase_if(found,
                  [](const Difference& difference) { return difference.field == "measured_on.sha256"; });
  return found;
}

std::string format_ablation(const Ablation& ablation) {
  Json json = {{"schema_version", schema_version_of(ablation)},
               {"conditions", to_json(ablation.conditions)},
               {"tool_version", ablation.tool_version}};
  json["base"] = to_json(ablation.base_accuracy);
  json["base"]["samples"] = samples_json(ablation.base.samples);
  if (ablation.kv_heads > 0) json["kv_heads"] = ablation.kv_heads;
  json["layers"] = Json::array();
  for (const LayerAblation& layer : ablation.layers) {
    Json row = {{"layer", layer.layer}};
    if (ablation.kv_heads > 0) row["kv_head"] = layer.kv_head;
    row.update(to_json(layer.accuracy));
    row["drop"] = layer.drop;
    row["drop_interval_95"] = to_json(layer.drop_interval);
    row["p_value"] = layer.p_value;
    json["layers"].push_back(std::move(row));
  }
  return json.dump(2) + "\n";
}

Ablation parse_ablation(std::string_view text, const std::string& place) {
  const Json json = parse_document(text, place);
  // The version decides what the other fields mean, so it is read before them.
  const bool has_version = json.is_object() && json.contains("schema_version");
  const bool version_1 = has_version && json["schema_version"] == 1;
  const Json known = {2, 3, kSchemaVersion};
  if (has_version && !version_1 && std::ranges::find(known, json["schema_version"]) == known.end())
    throw Unsupported(
        fmt::format("{}: 'schema_version' is {}, this allot reads 1 to {}; use the allot that "
                    "wrote the file",
                    place, shown(json["schema_version"]), kSchemaVersion));
  std::vector<std::string> faults;
  Ablation ablation;
  {
    JsonFields fields(json, "", &faults);
    fields.value("schema_version");
    ablation.tool_version = fields.text("tool_version");
    {
      JsonFields base = fields.object("base");
      ablation.base_accuracy = read_accuracy(base);
      ablation.base.samples = base.samples("samples", 0);
    }
    ablation.conditions = version_1 ? read_version_1(fields, ablation, &faults)
                                    : read_conditions(fields.value("conditions"), "conditions", &faults);
    if (has_version && json["schema_version"] == kSchemaVersion)
      ablation.kv_heads = fields.integer<int32_t>("kv_heads", 1);
    const Json& layers = fields.value("layers");
    const size_t heads = static_cast<size_t>(std::max(ablation.kv_heads, 1));
    if (!layers.is_array() || layers.size() != ablation.base.samples.size() * heads)
      faults.push_back(
          fmt::format("'layers' is a list of {}, expected {} for each of the {} layers of 'base.samples'",
                      layers.size(), heads, ablation.base.samples.size()));
    for (size_t row = 0; layers.is_array() && row < layers.size(); ++row)
      ablation.layers.push_back(
          read_layer(layers[row], static_cast<int32_t>(row), ablation.kv_heads, &faults));
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return ablation;
}

Ablation read_ablation(const std::filesystem::path& file) {
  return parse_ablation(read_file(file), file.string());
}

}  // namespace allot::evaluation
