// allot export: writes a schedule.json as files that other programs load.
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/files/export_formats.h"
#include "app/files/model_directory.h"
#include "app/files/schedule_argument.h"
#include "app/run/model_options.h"
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

// The files in `format`, a single one without a name. A file that does not fit a format is wrong usage.
std::vector<ExportedFile> exported(const ExportRequest& request, const std::string& format) {
  try {
    if (export_format(format).has_several_files()) return export_files(request, format);
    return {{.name = "", .text = export_schedule(request, format)}};
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
}

// The file of each total, in their order; that of the file itself without any.
std::vector<ScheduleFile> of_totals(const ScheduleFile& file, const std::string& totals) {
  if (totals.empty()) return {file};
  std::vector<ScheduleFile> files;
  try {
    for (const int64_t total : parse_totals(totals)) files.push_back(resolve_total(file, total));
  } catch (const InvalidArgument& error) {
    throw UsageError("--total " + totals + ": " + error.what());
  }
  return files;
}

// Makes `target` a model directory around the config.json that follows. With an adapter its weights have it
// merged into them, and the request becomes one for the model in `target`. A place that does not fit is wrong
// usage.
void complete_model(const fs::path& target, ExportRequest* request) {
  try {
    if (!request->adapter) return link_model(*request->model, target);
    merge_model(*request->model, *request->adapter, target);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
  model::ModelIdentity& model = request->schedule.conditions.model;
  request->schedule.merged_from = std::exchange(model, model::identify_model(target));
  request->model = target;
  request->adapter.reset();
}

}  // namespace

int run_export(std::span<const std::string> arguments) {
  fs::path schedule;
  fs::path model;
  std::optional<fs::path> adapter;
  fs::path out;
  std::string format = "json";
  std::string totals;
  std::string name = ExportRequest{}.name;
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
  declare_model_option(
      &options, &model,
      "model, which the schedule must be for: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(&options, &adapter,
                         "directory of the adapter of --model, which the schedule must be for, too");
  options.text("total", &totals, "N,…",
               "solve for this total instead of that of the file, from what the run learned of layers; with "
               "several, --out is the folder of the files");
  options.path(
      "out", &out,
      "file to write, outside the model directory; stdout when not given. Folder of the files for formats "
      "that have several");
  options.text("name", &name, "NAME", "of the ConfigMap of k8s");
  options.require("schedule");
  if (options.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  if (adapter && !options.given("model"))
    throw UsageError("--adapter " + adapter->string() + " belongs to a model, which --model names; add it");
  const std::vector<ScheduleFile> files = of_totals(read_schedule_file(schedule), totals);
  if (files.size() > 1 && !options.given("out"))
    throw UsageError("--total " + totals + " gives " + std::to_string(files.size()) +
                     " files; name the folder for them with --out DIR");
  if (options.given("name") && format != "k8s")
    throw UsageError("--name " + name + " is for the object of --format k8s, not for " + format);
  const ExportFormat& chosen = export_format(format);
  if (chosen.has_several_files() && !options.given("out"))
    throw UsageError("--format " + format + " has several files; name the folder for them with --out DIR");
  for (const ScheduleFile& file : files) {
    ExportRequest request{.schedule = file, .model = std::nullopt, .adapter = adapter, .name = name};
    if (options.given("model")) request.model = model;
    fs::path target = out;
    if (files.size() > 1) target /= "schedule-" + std::to_string(file.total) + chosen.extension;
    const fs::path touched = chosen.has_several_files() ? target / "file" : target;
    if (request.model && options.given("out")) refuse_to_touch_model(touched, model);
    if (request.model && chosen.is_model) refuse_to_touch_model(target, model);
    std::vector<ExportedFile> written = exported(request, format);  // refused before anything is written
    if (const std::string resolved = resolved_text(file); !resolved.empty())
      std::cerr << file.total << ": " << resolved << "\n";
    if (chosen.is_model) {
      complete_model(target, &request);
      written = exported(request, format);
    }
    for (const auto& [part, text] : written) {
      if (options.given("out")) {
        const fs::path path = part.empty() ? target : target / part;
        write_file_atomically(path, text);
        if (!chosen.is_model) std::cout << path.string() << "\n";
      } else {
        std::cout << text;
      }
    }
    if (chosen.is_model) std::cout << target.string() << "\n";
  }
  if (!chosen.reader.empty()) std::cerr << chosen.reader << "\n";
  return 0;
}

}  // namespace allot::app
