// allot export: writes a schedule.json as files that other programs load.
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/files/export_formats.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;

// Never writes into a model directory: it is somebody's original, often shared or a link into a cache.
void refuse_to_touch_model(const fs::path& out, const fs::path& model) {
  const fs::path folder = fs::weakly_canonical(fs::absolute(out)).parent_path();
  if (folder != fs::weakly_canonical(fs::absolute(model))) return;
  throw UsageError("--out " + out.string() + " lies in the model directory " + model.string() +
                   ", which export never writes to; choose another folder");
}

}  // namespace

int run_export(std::span<const std::string> arguments) {
  fs::path schedule;
  fs::path model;
  std::optional<fs::path> adapter;
  fs::path out;
  std::string format = "json";
  std::vector<std::string> names;
  std::string help = "what to write";
  for (const ExportFormat& known : export_formats()) {
    names.emplace_back(known.name);
    help.append("; ").append(known.name).append(": ").append(known.summary);
  }

  OptionSet options(
      "export", "write a schedule in a format that other programs load",
      "allot export --schedule runs/quickstart/schedule.json --format hf --model assets/tiny-gsm");
  options.path("schedule", &schedule, "schedule.json of a run");
  options.choice("format", &format, names, help.c_str());
  options.path("model", &model, "model directory; the schedule must be for this model");
  options.path("adapter", &adapter,
               "directory of the adapter of --model, which the schedule must be for, too");
  options.path("out", &out, "file to write, outside the model directory; stdout when not given");
  options.require("schedule");
  if (options.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  if (adapter && !options.given("model"))
    throw UsageError("--adapter " + adapter->string() + " belongs to a model, which --model names; add it");
  ExportRequest request{.schedule = read_schedule_file(schedule), .model = std::nullopt, .adapter = adapter};
  if (options.given("model")) request.model = model;
  if (request.model && options.given("out")) refuse_to_touch_model(out, model);
  std::string text;
  try {
    text = export_schedule(request, format);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
  if (options.given("out")) {
    write_file_atomically(out, text);
    std::cout << out.string() << "\n";
  } else {
    std::cout << text;
  }
  return 0;
}

}  // namespace allot::app
