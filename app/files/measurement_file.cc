#include "app/files/measurement_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
using Fields = evaluation::JsonFields;

// Less is rounding, and more is no divergence of distributions that a model computes.
constexpr double kLeastDivergence = 1e-12;
constexpr double kMostDivergence = 1e4;

// Reads the object of a line by `read`, which is given its fields; `here` names the line.
template <class Read>
void read_line(const std::string& line, const std::string& here, Read read) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    throw CorruptFile(here + ": no JSON object; expected a line of allot calibrate --measurements");
  std::vector<std::string> faults;
  {
    Fields fields(json, "", &faults);
    read(fields, faults);
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", here, fmt::join(faults, "; ")));
}

}  // namespace

std::string measurement_head(const evaluation::Conditions& conditions, const std::string& mode,
                             int32_t texts) {
  const Json json = {{"schema_version", kMeasurementSchemaVersion},
                     {"mode", mode},
                     {"texts", texts},
                     {"conditions", evaluation::to_json(conditions)}};
  return json.dump() + "\n";
}

std::string measurement_lines(int64_t batch, std::span<const policy::Schedule> schedules,
                              std::span<const double> divergences) {
  std::string lines;
  for (size_t i = 0; i < schedules.size(); ++i) {
    const Json json = {{"batch", batch},
                       {"schedule", evaluation::samples_json(schedules[i].samples)},
                       {"divergence", divergences[i]}};
    lines += json.dump() + "\n";
  }
  return lines;
}

MeasurementFile parse_measurements(std::string_view text, const std::string& place) {
  MeasurementFile file;
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);
  read_line(line, place + ":1", [&](Fields& fields, std::vector<std::string>& faults) {
    const auto version = fields.integer<int32_t>("schema_version", 0);
    if (faults.empty() && version != kMeasurementSchemaVersion)
      throw Unsupported(
          fmt::format("{}: 'schema_version' is {}, this allot reads {}; measure again with this allot", place,
                      version, kMeasurementSchemaVersion));
    file.mode = fields.text("mode");
    if (fields.has("texts")) file.texts = fields.integer<int32_t>("texts", 1);
    file.conditions = evaluation::read_conditions(fields.value("conditions"), "conditions", &faults);
  });
  const auto layers = static_cast<size_t>(file.conditions.model.layers);
  std::map<int64_t, size_t> places;  // in the batches, by number
  for (int64_t number = 2; std::getline(lines, line); ++number) {
    int64_t batch = 0;
    policy::Schedule schedule;
    double divergence = 0;
    read_line(line, fmt::format("{}:{}", place, number),
              [&](Fields& fields, std::vector<std::string>& faults) {
                batch = fields.integer<int64_t>("batch", 0);
                schedule.samples = fields.samples("schedule", 0);
                divergence = fields.real("divergence", kLeastDivergence, kMostDivergence);
                if (!faults.empty()) return;
                if (schedule.samples.size() != layers)
                  faults.push_back(fmt::format("'schedule' has {} layers, the model of line 1 has {}",
                                               schedule.samples.size(), layers));
                if (sampled_layers(schedule.samples) != static_cast<int64_t>(schedule.samples.size()))
                  faults.push_back("'schedule' " + schedule.to_string() +
                                   " has exact layers; expected samples in every layer");
              });
    const auto [found, added] = places.emplace(batch, file.batches.size());
    if (added) file.batches.emplace_back();
    file.batches[found->second].schedules.push_back(std::move(schedule));
    file.batches[found->second].divergences.push_back(divergence);
  }
  if (file.batches.empty()) throw CorruptFile(place + ": no measurements");
  return file;
}

}  // namespace allot::app
