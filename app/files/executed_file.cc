#include "app/files/executed_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
using Fields = evaluation::JsonFields;

// Most tokens or rows of a file: sums stay far from the end of 64 bits.
constexpr int64_t kMostCounted = int64_t{1} << 60;

double mean(int64_t sum, int64_t count) {
  return static_cast<double>(sum) / static_cast<double>(count);
}

Json executed_layer_json(const model::LayerExecution& layer, size_t number) {
  Json json = {
      {"layer", number},
      {"sampled_tokens", layer.sampled_tokens},
      {"exact_tokens", layer.exact_tokens},
      {"samples", layer.samples},
      {"executed", layer.sampled_tokens > 0 ? Json(mean(layer.samples, layer.sampled_tokens)) : Json()}};
  if (layer.rows) json["rows"] = *layer.rows;
  json["row_limit"] = layer.row_limit;
  return json;
}

model::LayerExecution read_executed_layer(Fields&& fields, int64_t number) {
  const auto found = fields.integer<int64_t>("layer", 0);
  if (found != number)
    fields.fault(fmt::format("{} is {}, expected {}", fields.where("layer"), found, number));
  const auto count = [&](const char* name) { return fields.integer<int64_t>(name, 0, kMostCounted); };
  model::LayerExecution layer{.sampled_tokens = count("sampled_tokens"),
                              .exact_tokens = count("exact_tokens"),
                              .samples = count("samples"),
                              .row_limit = count("row_limit")};
  if (fields.has("rows")) layer.rows = count("rows");
  (void)fields.has("executed");  // a mean for people, which follows from the sums
  return layer;
}

}  // namespace

std::string format_executed_file(const ExecutedFile& file) {
  Json json = {{"schema_version", kExecutedSchemaVersion},
               {"engine",
                {{"name", file.engine}, {"version", file.engine_version}, {"computed_by", file.computed_by}}},
               {"conditions", evaluation::to_json(file.conditions)}};
  if (!file.run_id.empty()) json["run_id"] = file.run_id;
  json["samples"] = evaluation::samples_json(file.schedule.samples);
  json["layers"] = Json::array();
  for (size_t i = 0; i < file.layers.size(); ++i)
    json["layers"].push_back(executed_layer_json(file.layers[i], i));
  return json.dump(2) + "\n";
}

ExecutedFile parse_executed_file(std::string_view text, const std::string& place) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw CorruptFile(place +
                      ": is no JSON object; expected what `allot eval --executed-out` or "
                      "save_report of allot_attention, allot_vllm or allot_sglang writes");
  if (json.contains("schema_version") && json["schema_version"] != kExecutedSchemaVersion)
    throw Unsupported(fmt::format(
        "{}: 'schema_version' is {}, this allot reads {}; use the allot that belongs to the engine", place,
        evaluation::shown(json["schema_version"]), kExecutedSchemaVersion));
  std::vector<std::string> faults;
  ExecutedFile file;
  {
    Fields fields(json, "", &faults);
    fields.value("schema_version");
    {
      Fields engine = fields.object("engine");
      file.engine = engine.text("name");
      file.engine_version = engine.text("version");
      file.computed_by = engine.text("computed_by");
    }
    file.conditions = evaluation::read_conditions(fields.value("conditions"), "conditions", &faults);
    if (fields.has("run_id")) file.run_id = fields.text("run_id");
    file.schedule.samples = fields.samples("samples", 0);
    const Json& layers = fields.value("layers");
    if (!layers.is_array() || layers.size() != file.schedule.samples.size()) {
      fields.fault(fmt::format("'layers' has {} entries, expected {}, as many as 'samples'", layers.size(),
                               file.schedule.samples.size()));
    } else {
      for (size_t i = 0; i < layers.size(); ++i)
        file.layers.push_back(
            read_executed_layer({layers[i], fmt::format("layers[{}]", i), &faults}, static_cast<int64_t>(i)));
    }
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return file;
}

ExecutedFile read_executed_file(const std::filesystem::path& path) {
  return parse_executed_file(read_file(path), path.string());
}

Json to_json(const ExecutedVerdict& verdict, const ExecutedFile& executed) {
  Json json = {{"as_asked", verdict.as_asked()}, {"differences", Json::array()}, {"faults", Json::array()}};
  for (const evaluation::Difference& difference : verdict.differences)
    json["differences"].push_back(
        {{"field", difference.field}, {"schedule", difference.first}, {"engine", difference.second}});
  for (const ExecutedVerdict::Layer& layer : verdict.layers)
    for (const std::string& fault : layer.faults) json["faults"].push_back(fault);
  json["unknown"] = verdict.unknown;
  json["layers"] = Json::array();
  for (size_t i = 0; i < executed.layers.size(); ++i)
    json["layers"].push_back(executed_layer_json(executed.layers[i], i));
  return json;
}

}  // namespace allot::app
