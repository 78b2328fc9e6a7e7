// Writes schedules in formats for other programs: one function per format, and the table of them. A new
// format is a function and a row.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/files/schedule_file.h"

namespace allot::app {

struct ExportRequest {
  ScheduleFile schedule;
  std::optional<std::filesystem::path> model;  // model directory, whose model must be that of the schedule
  std::optional<std::filesystem::path> adapter = std::nullopt;  // and the adapter of that model
  std::string name = "allot-schedule";                          // of an object that has one
};

// One of the files of a format that has several.
struct ExportedFile {
  std::string name;  // in their folder
  std::string text;  // newline at the end
  friend bool operator==(const ExportedFile&, const ExportedFile&) = default;
};

struct ExportFormat {
  const char* name;
  const char* summary;
  const char* extension;  // of a file in this format; empty where it is a folder of several
  bool needs_model;
  std::string (*write)(const ExportRequest& request);  // the exported text, newline at the end, or null and
  std::vector<ExportedFile> (*write_files)(const ExportRequest& request);  // the files of a folder
  std::string_view reader;  // what the target needs in order to obey the file; empty where it is only data
  bool is_model = false;    // the files are completed by model_directory.h

  bool has_several_files() const { return write_files != nullptr; }
};

std::span<const ExportFormat> export_formats();
// The format of this name. Throws InvalidArgument for an unknown one, listing the known ones.
const ExportFormat& export_format(std::string_view name);

// The exported text. With request.model the model must be that of the schedule: Mismatch otherwise, naming
// both. Throws InvalidArgument for an unknown format (listing the known ones) or a missing model, and the
// errors of the readers. export_schedule is for formats of one file (InvalidArgument otherwise), export_files
// for those of several.
std::string export_schedule(const ExportRequest& request, std::string_view format);
std::vector<ExportedFile> export_files(const ExportRequest& request, std::string_view format);

// {"allot": {…}}: the fields that `hf` and `hf-config` add to a config.json.
std::string to_hf_overlay(const ExportRequest& request);
// The model's config.json with those fields added and everything else unchanged. Throws CorruptFile when
// config.json is not a JSON object, InvalidArgument without a model.
std::string to_hf_config(const ExportRequest& request);
// The config.json of to_hf_config, and for merged weights the schedule.json of that model, which differs from
// that of the run in what identifies the model. link_model() or merge_model() adds the other files.
std::vector<ExportedFile> to_hf_model(const ExportRequest& request);
// The text of a schedule.json, of this schedule.
std::string to_schedule(const ExportRequest& request);
// {"model", "estimator", "prefill", "total", "samples", "conditions"}; with "unit" where it is not samples,
// and with "resolved" as in schedule.json.
std::string to_json(const ExportRequest& request);
// "layer,samples", or "layer,rows", and one line per layer: "0,exact", "1,8".
std::string to_csv(const ExportRequest& request);

// hf-overrides.json, the value of vLLM's --hf-overrides, and vllm-serve.sh with the command that serves the
// request's model (MODEL without one) under the schedule.
std::vector<ExportedFile> to_vllm(const ExportRequest& request);
// model-override-args.json, the value of SGLang's --json-model-override-args, and sglang-serve.sh.
std::vector<ExportedFile> to_sglang(const ExportRequest& request);
// A ConfigMap in YAML, called request.name, with the keys schedule.json and hf-overrides.json. Throws
// InvalidArgument for a name that Kubernetes does not take.
std::string to_config_map(const ExportRequest& request);

}  // namespace allot::app
