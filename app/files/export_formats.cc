#include "app/files/export_formats.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "app/files/command_words.h"
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

constexpr std::string_view kVllm =
    "vLLM 0.26.0 obeys it with python/allot_vllm: pip install ./python/allot_attention ./python/allot_vllm, with "
    "ALLOT_TORCH_LIBRARY naming a liballot_torch.so built with CUDA, and --attention-backend CUSTOM as in "
    "vllm-serve.sh; without the plugin vLLM does not start with that backend, and without the backend it runs "
    "dense attention and says nothing. allot_vllm.save_report(llm, FILE) and allot verify --executed FILE show "
    "what was executed.";
constexpr std::string_view kSglang =
    "SGLang 0.5.23 is to obey it with python/allot_sglang, which was never run on a GPU: pip install "
    "./python/allot_attention ./python/allot_sglang, with ALLOT_TORCH_LIBRARY naming a liballot_torch.so built with "
    "CUDA, and --attention-backend allot as in sglang-serve.sh; without the plugin (group sglang.srt.plugins) SGLang "
    "does not start with that backend, and without the backend it runs dense attention and says nothing.";
constexpr std::string_view kConfigMap =
    "Mount it as files: schedule.json is for allot (eval, generate, serve --schedule), hf-overrides.json for "
    "vllm serve --hf-overrides \"$(cat hf-overrides.json)\" with python/allot_vllm and --attention-backend CUSTOM; "
    "without these vLLM runs dense attention and says nothing.";

constexpr ExportFormat kFormats[] = {
    {"json", "samples per layer as plain JSON", ".json", false, to_json, nullptr, ""},
    {"csv", "one line per layer: layer,samples or layer,rows", ".csv", false, to_csv, nullptr, ""},
    {"hf", "the fields to add to a Hugging Face config.json", ".json", false, to_hf_overlay, nullptr,
     kTransformers},
    {"hf-config", "a copy of the model's config.json with those fields", ".json", true, to_hf_config, nullptr,
     kTransformers},
    {"vllm", "a folder with vLLM's hf-overrides.json and the command that serves with it", "", false, nullptr,
     to_vllm, kVllm},
    {"sglang", "a folder with SGLang's model-override-args.json and the command that serves with it", "",
     false, nullptr, to_sglang, kSglang},
    {"k8s", "a Kubernetes ConfigMap with schedule.json and hf-overrides.json", ".yaml", false, to_config_map,
     nullptr, kConfigMap},
    {"hf-model",
     "a model directory: that config.json and links to the model's other files; with --adapter the weights are "
     "written, the adapter merged into them",
     "", true, nullptr, to_hf_model, kTransformers, true},
    {"schedule", "a schedule.json, which eval, verify and tune --start read", ".json", false, to_schedule,
     nullptr, ""},
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
  if (file.merged_from) {
    const auto& [id, fingerprint] = *file.merged_from->adapter;
    json["merged_from"] = {{"id", file.merged_from->id},
                           {"weights_fingerprint", file.merged_from->weights_fingerprint},
                           {"adapter", {{"id", id}, {"fingerprint", fingerprint}}}};
  }
  json.update({{"run_id", file.run_id}, {"tool_version", file.tool_version}});
  return json;
}

std::string text_of(const Json& json) {
  return json.dump(2) + "\n";
}

std::string one_line(const ExportRequest& request) {
  return Json({{"allot", overlay(request.schedule)}}).dump();
}

std::string served_model(const ExportRequest& request) {
  return request.model ? shell_word(std::filesystem::absolute(*request.model).lexically_normal().string())
                       : "MODEL";
}

// A text as the value of a key of a YAML map: literally, a step further in.
std::string literal_block(std::string_view key, std::string_view text) {
  std::string block = fmt::format("  {}: |\n", key);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    block += fmt::format("    {}\n", text.substr(begin, end - begin));
    begin = end == std::string_view::npos ? text.size() : end + 1;
  }
  return block;
}

// Whether Kubernetes takes the name for an object: a DNS subdomain of at most 253 characters.
bool is_object_name(std::string_view name) {
  const auto is_alphanumeric = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (name.empty() || name.size() > 253) return false;
  bool after_break = true;  // behind the start or a dot, where a letter or digit has to follow
  for (size_t i = 0; i < name.size(); ++i) {
    const bool ends = i + 1 == name.size() || name[i + 1] == '.';
    if (!is_alphanumeric(name[i]) && (after_break || ends || (name[i] != '-' && name[i] != '.')))
      return false;
    after_break = name[i] == '.';
  }
  return true;
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

std::vector<ExportedFile> to_vllm(const ExportRequest& request) {
  const bool sampled = request.schedule.conditions.attention.prefill == kernels::Prefill::kSampled;
  // Keys and values of a prompt that was sampled are those of its question.
  const std::string caching = sampled ? " --no-enable-prefix-caching" : "";
  return {
      {"hf-overrides.json", to_hf_overlay(request)},
      {"vllm-serve.sh",
       fmt::format("#!/bin/sh\nexec vllm serve {} --attention-backend CUSTOM{} --hf-overrides {} \"$@\"\n",
                   served_model(request), caching, shell_word(one_line(request)))}};
}

std::vector<ExportedFile> to_sglang(const ExportRequest& request) {
  const bool sampled = request.schedule.conditions.attention.prefill == kernels::Prefill::kSampled;
  const std::string caching = sampled ? " --disable-radix-cache" : "";
  return {
      {"model-override-args.json", to_hf_overlay(request)},
      {"sglang-serve.sh",
       fmt::format(
           "#!/bin/sh\nexec env SGLANG_USE_HND_KVCACHE=1 python3 -m sglang.launch_server --model-path {} "
           "--attention-backend allot --page-size 16 --disable-prefill-cuda-graph{} --json-model-override-args {} "
           "\"$@\"\n",
           served_model(request), caching, shell_word(one_line(request)))}};
}

std::string to_config_map(const ExportRequest& request) {
  if (!is_object_name(request.name))
    throw InvalidArgument(fmt::format(
        "\"{}\" is no name of a Kubernetes object; expected lower-case letters, digits, '-' and '.', beginning and "
        "ending with a letter or digit, at most 253",
        request.name));
  std::string text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n";
  text += fmt::format("  name: '{}'\n", request.name);
  text += "  labels:\n    app.kubernetes.io/name: allot\n    app.kubernetes.io/component: schedule\ndata:\n";
  text += literal_block("schedule.json", to_schedule(request));
  return text + literal_block("hf-overrides.json", to_hf_overlay(request));
}

std::vector<ExportedFile> to_hf_model(const ExportRequest& request) {
  std::vector<ExportedFile> files = {{"config.json", to_hf_config(request)}};
  if (request.schedule.merged_from) files.push_back({"schedule.json", to_schedule(request)});
  return files;
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

namespace {

// The format, after what every format needs was checked.
const ExportFormat& checked_format(const ExportRequest& request, std::string_view format) {
  const ExportFormat& found = export_format(format);
  if (found.needs_model && !request.model) {
    throw InvalidArgument(fmt::format("format {} needs the model directory; give it with --model", format));
  }
  if (request.model) {
    check_matches(request.schedule, model::identify_model(*request.model, {.adapter = request.adapter}));
  }
  return found;
}

}  // namespace

std::string export_schedule(const ExportRequest& request, std::string_view format) {
  const ExportFormat& found = checked_format(request, format);
  if (found.has_several_files())
    throw InvalidArgument(fmt::format("format {} has several files; write them to a folder", format));
  return found.write(request);
}

std::vector<ExportedFile> export_files(const ExportRequest& request, std::string_view format) {
  const ExportFormat& found = checked_format(request, format);
  if (!found.has_several_files())
    throw InvalidArgument(fmt::format("format {} has one file, not a folder of files", format));
  return found.write_files(request);
}

}  // namespace allot::app
