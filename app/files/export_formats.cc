#include "app/files/export_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTransformers =
    "The schedule is the key \"allot\" of config.json, which programs that do not know it ignore: they run dense "
    "attention and say nothing. Transformers 5.17 obeys it with python/allot_attention: pip install "
    "./python/allot_attention, allot_attention.register(), from_pretrained(DIR, attn_implementation=\"allot\"); "
    "allot_attention.report(model) shows the samples executed.";

constexpr ExportFormat kFormats[] = {
    {"json", "samples per layer as plain JSON", ".json", false, to_json, ""},
    {"csv", "one line per layer: layer,samples or layer,rows", ".csv", false, to_csv, ""},
    {"hf", "the fields to add to a Hugging Face config.json", ".json", false, to_hf_overlay, kTransformers},
    {"hf-config", "a copy of the model's config.json with those fields", ".json", true, to_hf_config,
     kTransformers},
    {"schedule", "a schedule.json, which eval, verify and tune --start read", ".json", false, to_schedule,
     ""},
};

void add_resolved(const ScheduleFile& file, Json* json) {
  if (file.resolved_from) (*json)["resolved"] = {{"from_total", *file.resolved_from}, {"verified", false}};
}

// What an engine needs to run the schedule and to check that it is meant for its model.
Json overlay(const ScheduleFile& file) {
  Json json = {{"schema_version", schema_version_of(file)},
               {"samples", evaluation::samples_json(file.schedule.samples)},
               {"conditions", evaluation::to_json(file.conditions)}};
  add_resolved(file, &json);
  json.update({{"run_id", file.run_id}, {"tool_version", file.tool_version}});
  return json;
}

std::string text_of(const Json& json) {
  return json.dump(2) + "\n";
}

}  // namespace

std::string to_json(const ExportRequest& request) {
  const ScheduleFile& file = request.schedule;
  const kernels::AttentionMethod& attention = file.conditions.attention;
  Json json = {{"model", file.conditions.model.id}, {"estimator", kernels::name(attention.estimator)}};
  if (attention.unit != kernels::BudgetUnit::kSamples) json["unit"] = kernels::name(attention.unit);
  json.update({{"prefill", kernels::name(attention.prefill)},
               {"total", file.total},
               {"samples", evaluation::samples_json(file.schedule.samples)},
               {"conditions", evaluation::to_json(file.conditions)}});
  add_resolved(file, &json);
  return text_of(json);
}

std::string to_schedule(const ExportRequest& request) {
  return format_schedule_file(request.schedule);
}

std::string to_csv(const ExportRequest& request) {
  std::string text = fmt::format("layer,{}\n", kernels::name(request.schedule.conditions.attention.unit));
  const std::vector<int32_t>& samples = request.schedule.schedule.samples;
  for (size_t layer = 0; layer < samples.size(); ++layer)
    text += fmt::format("{},{}\n", layer, layer_text(samples[layer]));
  return text;
}

std::string to_hf_overlay(const ExportRequest& request) {
  return text_of({{"allot", overlay(request.schedule)}});
}

std::string to_hf_config(const ExportRequest& request) {
  if (!request.model)
    throw InvalidArgument("hf-config merges into a model's config.json, but no model was given");
  const std::filesystem::path path = *request.model / "config.json";
  const Json config = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object())
    throw CorruptFile(path.string() + ": is no JSON object; expected a Hugging Face config");
  Json merged = config;
  merged["allot"] = overlay(request.schedule);
  return text_of(merged);
}

std::span<const ExportFormat> export_formats() {
  return kFormats;
}

const ExportFormat& export_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &ExportFormat::name);
  if (found == std::end(kFormats)) {
    std::vector<std::string_view> names;
    for (const ExportFormat& known : kFormats) names.emplace_back(known.name);
    throw InvalidArgument(
        fmt::format("\"{}\" is no export format; known are {}", name, fmt::join(names, ", ")));
  }
  return *found;
}

std::string export_schedule(const ExportRequest& request, std::string_view format) {
  const ExportFormat& found = export_format(format);
  if (found.needs_model && !request.model) {
    throw InvalidArgument(fmt::format("format {} needs the model directory; give it with --model", format));
  }
  if (request.model) {
    check_matches(request.schedule, model::identify_model(*request.model, {.adapter = request.adapter}));
  }
  return found.write(request);
}

}  // namespace allot::app
