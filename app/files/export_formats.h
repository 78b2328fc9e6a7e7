// Writes schedules in formats for other programs: one function per format, and the table of them. A new
// format is a function and a row.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "app/files/schedule_file.h"

namespace allot::app {

struct ExportRequest {
  ScheduleFile schedule;
  std::optional<std::filesystem::path> model;  // model directory, whose model must be that of the schedule
  std::optional<std::filesystem::path> adapter = std::nullopt;  // and the adapter of that model
};

struct ExportFormat {
  const char* name;
  const char* summary;
  const char* extension;  // of a file in this format
  bool needs_model;
  std::string (*write)(const ExportRequest& request);  // the exported text, newline at the end
  std::string_view reader;  // what the target needs in order to obey the file; empty where it is only data
};

std::span<const ExportFormat> export_formats();
// The format of this name. Throws InvalidArgument for an unknown one, listing the known ones.
const ExportFormat& export_format(std::string_view name);

// The exported text. With request.model the model must be that of the schedule: Mismatch otherwise, naming
// both. Throws InvalidArgument for an unknown format (listing the known ones) or a missing model, and the
// errors of the readers.
std::string export_schedule(const ExportRequest& request, std::string_view format);

// {"allot": {…}}: the fields that `hf` and `hf-config` add to a config.json.
std::string to_hf_overlay(const ExportRequest& request);
// The model's config.json with those fields added and everything else unchanged. Throws CorruptFile when
// config.json is not a JSON object, InvalidArgument without a model.
std::string to_hf_config(const ExportRequest& request);
// The text of a schedule.json, of this schedule.
std::string to_schedule(const ExportRequest& request);
// {"model", "estimator", "prefill", "total", "samples", "conditions"}; with "unit" where it is not samples,
// and with "resolved" as in schedule.json.
std::string to_json(const ExportRequest& request);
// "layer,samples", or "layer,rows", and one line per layer: "0,exact", "1,8".
std::string to_csv(const ExportRequest& request);

}  // namespace allot::app
