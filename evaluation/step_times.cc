#include "evaluation/step_times.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;
constexpr double kMostMicroseconds = 1e12;

Json to_json(const StepTime& time) {
  return {{"median", time.median}, {"p5", time.low}, {"p95", time.high}};
}

StepTime read_time(JsonFields fields) {
  StepTime time;
  time.low = fields.real("p5", 0, kMostMicroseconds);
  time.median = fields.real("median", time.low, kMostMicroseconds);
  time.high = fields.real("p95", time.median, kMostMicroseconds);
  return time;
}

ContextTimes read_context(const Json& object, size_t number, int64_t least,
                          std::vector<std::string>* faults) {
  JsonFields fields(object, fmt::format("contexts[{}]", number), faults);
  ContextTimes times;
  times.context = fields.integer<int64_t>("context", least);
  times.dense = read_time(fields.object("dense_us"));
  times.schedule = read_time(fields.object("schedule_us"));
  return times;
}

}  // namespace

std::string format_step_times(const StepTimes& times) {
  Json json = {{"schema_version", kSchemaVersion},
               {"conditions", to_json(times.conditions)},
               {"tool_version", times.tool_version},
               {"device", times.device},
               {"sequences", times.sequences},
               {"steps", times.steps},
               {"samples", samples_json(times.schedule.samples)}};
  json["contexts"] = Json::array();
  for (const ContextTimes& one : times.contexts) {
    json["contexts"].push_back(
        {{"context", one.context}, {"dense_us", to_json(one.dense)}, {"schedule_us", to_json(one.schedule)}});
  }
  return json.dump(2) + "\n";
}

StepTimes parse_step_times(std::string_view text, const std::string& place) {
  const Json json = parse_document(text, kSchemaVersion, place);
  std::vector<std::string> faults;
  StepTimes times;
  {
    JsonFields fields(json, "", &faults);
    fields.value("schema_version");
    times.conditions = read_conditions(fields.value("conditions"), "conditions", &faults);
    times.tool_version = fields.text("tool_version");
    times.device = fields.text("device");
    times.sequences = fields.integer<int32_t>("sequences", 1);
    times.steps = fields.integer<int32_t>("steps", 1);
    times.schedule.samples = fields.samples("samples", 0);
    const Json& contexts = fields.value("contexts");
    if (!contexts.is_array()) {
      faults.push_back(fmt::format("'contexts' is {}, expected a list", shown(contexts)));
    } else {
      for (size_t i = 0; i < contexts.size(); ++i) {
        const int64_t least = times.contexts.empty() ? 1 : times.contexts.back().context + 1;
        times.contexts.push_back(read_context(contexts[i], i, least, &faults));
      }
    }
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return times;
}

StepTimes read_step_times(const std::filesystem::path& file) {
  return parse_step_times(read_file(file), file.string());
}

}  // namespace allot::evaluation
