#include "evaluation/ablation.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 2;

Proportion count(const std::vector<uint8_t>& correct) {
  Proportion score{.questions = static_cast<int64_t>(correct.size()), .correct = 0};
  for (const uint8_t right : correct) score.correct += right != 0;
  return score;
}

Json to_json(const Interval& interval) {
  return Json::array({interval.low, interval.high});
}

Json score_json(const Proportion& score, const Interval& interval) {
  return {{"n", score.questions},
          {"correct", score.correct},
          {"accuracy", score.accuracy()},
          {"interval_95", to_json(interval)}};
}

// Reads fields of one JSON object and names file and field of whatever is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    if (!object_.is_object())
      throw CorruptFile(fmt::format("{}: is {}, expected an object", place_, object_.type_name()));
  }

  std::string text(const char* field) const {
    const Json& value = at(field);
    if (!value.is_string()) fail(field, value, "a text");
    return value.get<std::string>();
  }
  int64_t integer(const char* field, int64_t min, int64_t max) const {
    const Json& value = at(field);
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(min) ||
        value.get<double>() > static_cast<double>(max))
      fail(field, value, fmt::format("an integer from {} to {}", min, max));
    return value.get<int64_t>();
  }
  double real(const char* field, double min, double max) const {
    return in_range(field, at(field), min, max);
  }
  Interval interval(const char* field, double min) const {
    const Json& value = at(field);
    if (!value.is_array() || value.size() != 2) fail(field, value, "a pair of numbers");
    return {in_range(field, value[0], min, 1), in_range(field, value[1], min, 1)};
  }
  Proportion proportion() const {
    const int64_t questions = integer("n", 1, std::numeric_limits<uint32_t>::max());
    return {.questions = questions, .correct = integer("correct", 0, questions)};
  }
  const Json& list(const char* field) const {
    const Json& value = at(field);
    if (!value.is_array() || value.empty()) fail(field, value, "a list that is not empty");
    return value;
  }
  const Json& at(const char* field) const {
    const auto found = object_.find(field);
    if (found == object_.end()) throw CorruptFile(fmt::format("{}: field \"{}\" is missing", place_, field));
    return *found;
  }
  [[noreturn]] void fail(const char* field, const Json& value, std::string_view expected) const {
    throw CorruptFile(fmt::format("{}: field \"{}\" is {}, expected {}", place_, field,
                                  value.dump().substr(0, 60), expected));
  }

 private:
  double in_range(const char* field, const Json& value, double min, double max) const {
    if (!value.is_number() || value.get<double>() < min || value.get<double>() > max)
      fail(field, value, fmt::format("a number from {} to {}", min, max));
    return value.get<double>();
  }

  const Json& object_;
  std::string place_;
};

// Version 1 has a few of the conditions as fields of its own; the others are not known.
Conditions read_version_1(const Fields& fields, const Ablation& ablation, const std::string& place) {
  Json json = unknown_conditions();
  json["model"]["id"] = fields.text("model");
  json["model"]["weights_fingerprint"] = fields.text("weights_fingerprint");
  json["model"]["layers"] = ablation.base.samples.size();
  json["task"] = {{"name", fields.text("task")},
                  {"version", fields.integer("task_version", 1, std::numeric_limits<int32_t>::max())},
                  {"prompt_style", fields.text("prompt_style")}};
  json["measured_on"] = {{"sha256", fields.text("data_sha256")},
                         {"questions", ablation.base_score.questions}};
  json["attention"]["estimator"] = fields.text("estimator");
  json["attention"]["prefill"] = fields.text("prefill");
  json["generation"]["dtype"] = fields.text("dtype");
  json["seed"] = fields.integer("seed", 0, std::numeric_limits<uint32_t>::max());
  return conditions_from_json(json, place);
}

LayerAblation read_layer(const Fields& fields, int32_t layer) {
  if (fields.integer("layer", 0, std::numeric_limits<int32_t>::max()) != layer)
    fields.fail("layer", fields.at("layer"), fmt::format("{}: layers are listed in order", layer));
  return {.layer = layer,
          .score = fields.proportion(),
          .accuracy = fields.interval("interval_95", 0),
          .drop = fields.real("drop", -1, 1),
          .drop_interval = fields.interval("drop_interval_95", -1),
          .p_value = fields.real("p_value", 0, 1)};
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

Ablation make_ablation(Conditions conditions, policy::Schedule base, const std::vector<uint8_t>& base_correct,
                       const std::vector<std::vector<uint8_t>>& layer_correct) {
  if (layer_correct.size() != base.samples.size())
    throw InvalidArgument(fmt::format("ablation: scores of {} layers for a base schedule of {} layers",
                                      layer_correct.size(), base.samples.size()));
  Ablation ablation{.conditions = std::move(conditions),
                    .tool_version = {},
                    .base = std::move(base),
                    .base_score = count(base_correct),
                    .base_accuracy = {},
                    .layers = {}};
  ablation.base_accuracy = wilson_interval(ablation.base_score.correct, ablation.base_score.questions);
  for (const std::vector<uint8_t>& correct : layer_correct) {
    const Pairs pairs = count_pairs(base_correct, correct);
    LayerAblation layer;
    layer.layer = static_cast<int32_t>(ablation.layers.size());
    layer.score = count(correct);
    layer.accuracy = wilson_interval(layer.score.correct, layer.score.questions);
    layer.drop = pairs.difference();
    layer.drop_interval = paired_difference_interval(pairs.only_first, pairs.only_second, pairs.questions);
    layer.p_value = mcnemar_exact(pairs.only_first, pairs.only_second);
    ablation.layers.push_back(layer);
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
  Json json = {{"schema_version", kSchemaVersion},
               {"conditions", to_json(ablation.conditions)},
               {"tool_version", ablation.tool_version}};
  json["base"] = score_json(ablation.base_score, ablation.base_accuracy);
  json["base"]["samples"] = ablation.base.samples;
  json["layers"] = Json::array();
  for (const LayerAblation& layer : ablation.layers) {
    Json row = {{"layer", layer.layer}};
    row.update(score_json(layer.score, layer.accuracy));
    row["drop"] = layer.drop;
    row["drop_interval_95"] = to_json(layer.drop_interval);
    row["p_value"] = layer.p_value;
    json["layers"].push_back(std::move(row));
  }
  return json.dump(2) + "\n";
}

Ablation parse_ablation(std::string_view text, const std::string& place) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw CorruptFile(fmt::format("{}: not JSON", place));
  const Fields fields(json, place);
  const int64_t version = fields.integer("schema_version", 1, std::numeric_limits<int32_t>::max());
  if (version > kSchemaVersion)
    throw Unsupported(
        fmt::format("{}: schema_version {}, this build reads 1 to {}", place, version, kSchemaVersion));

  Ablation ablation;
  ablation.tool_version = fields.text("tool_version");
  const Fields base(fields.at("base"), place + ": base");
  ablation.base_score = base.proportion();
  ablation.base_accuracy = base.interval("interval_95", 0);
  for (const Json& samples : base.list("samples")) {
    if (!samples.is_number_unsigned() ||
        samples.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()})
      base.fail("samples", base.at("samples"), "integers >= 0");
    ablation.base.samples.push_back(samples.get<int32_t>());
  }
  ablation.conditions = version == 1 ? read_version_1(fields, ablation, place)
                                     : conditions_from_json(fields.at("conditions"), place + ": conditions");
  const Json& layers = fields.list("layers");
  if (layers.size() != ablation.base.samples.size())
    throw CorruptFile(fmt::format("{}: field \"layers\" has {} entries for a base schedule of {}", place,
                                  layers.size(), ablation.base.samples.size()));
  for (size_t layer = 0; layer < layers.size(); ++layer)
    ablation.layers.push_back(read_layer(Fields(layers[layer], fmt::format("{}: layers[{}]", place, layer)),
                                         static_cast<int32_t>(layer)));
  return ablation;
}

Ablation read_ablation(const std::filesystem::path& file) {
  return parse_ablation(read_file(file), file.string());
}

}  // namespace allot::evaluation
