#include "evaluation/frontier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/json_fields.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFrontierVersion = 1;

Json side_json(const Accuracy& accuracy, const policy::Schedule& schedule) {
  Json json = to_json(accuracy);
  json["samples"] = samples_json(schedule.samples);
  return json;
}

void read_side(JsonFields side, int64_t questions, int64_t total, Accuracy* accuracy,
               policy::Schedule* schedule) {
  *accuracy = read_accuracy(side);
  schedule->samples = side.samples("samples", 0);
  if (accuracy->questions != questions)
    side.fault(fmt::format("{} is {}, expected {}, as many as of 'dense'", side.where("n"),
                           accuracy->questions, questions));
  if (schedule->total() != total)
    side.fault(fmt::format("{} sum to {}, the total is {}", side.where("samples"), schedule->total(), total));
}

FrontierPoint read_point(const Json& object, size_t number, int64_t questions,
                         std::vector<std::string>* faults) {
  JsonFields fields(object, fmt::format("totals[{}]", number), faults);
  FrontierPoint point{.total = fields.integer<int64_t>("total", 0), .resolved = fields.flag("resolved")};
  read_side(fields.object("uniform"), questions, point.total, &point.uniform, &point.uniform_schedule);
  read_side(fields.object("learned"), questions, point.total, &point.learned, &point.learned_schedule);
  JsonFields paired = fields.object("paired");
  point.paired = read_paired_test(paired, "learned", "uniform", questions);
  return point;
}

}  // namespace

FrontierPoint score_point(FrontierPoint point, std::span<const double> uniform,
                          std::span<const double> learned) {
  if (uniform.size() != learned.size())
    throw InvalidArgument(fmt::format("total {}: {} scores of the uniform schedule and {} of the learned one",
                                      point.total, uniform.size(), learned.size()));
  point.uniform = accuracy_of(uniform);
  point.learned = accuracy_of(learned);
  point.paired = compare_scores(learned, uniform);
  return point;
}

std::string format_frontier(const Frontier& frontier) {
  Json json = {{"schema_version", kFrontierVersion},    {"conditions", to_json(frontier.conditions)},
               {"tool_version", frontier.tool_version}, {"run_id", frontier.run_id},
               {"dense", to_json(frontier.dense)},      {"totals", Json::array()}};
  for (const FrontierPoint& point : frontier.points) {
    json["totals"].push_back({{"total", point.total},
                              {"resolved", point.resolved},
                              {"uniform", side_json(point.uniform, point.uniform_schedule)},
                              {"learned", side_json(point.learned, point.learned_schedule)},
                              {"paired", to_json(point.paired, "learned", "uniform")}});
  }
  return json.dump(2) + "\n";
}

Frontier parse_frontier(std::string_view text, const std::string& place) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw CorruptFile(fmt::format("{}: not JSON", place));
  if (json.is_object() && json.contains("schema_version") && json["schema_version"] != kFrontierVersion)
    throw Unsupported(
        fmt::format("{}: 'schema_version' is {}, this allot reads {}; use the allot that wrote the file",
                    place, shown(json["schema_version"]), kFrontierVersion));
  std::vector<std::string> faults;
  Frontier frontier;
  {
    JsonFields fields(json, "", &faults);
    fields.value("schema_version");
    frontier.conditions = read_conditions(fields.value("conditions"), "conditions", &faults);
    frontier.tool_version = fields.text("tool_version");
    frontier.run_id = fields.text("run_id");
    {
      JsonFields dense = fields.object("dense");
      frontier.dense = read_accuracy(dense);
    }
    const Json& totals = fields.value("totals");
    if (!totals.is_array() || totals.empty())
      faults.push_back(fmt::format("'totals' is {}, expected a list of one or more", shown(totals)));
    for (size_t i = 0; totals.is_array() && i < totals.size(); ++i) {
      frontier.points.push_back(read_point(totals[i], i, frontier.dense.questions, &faults));
      if (i > 0 && frontier.points[i - 1].total >= frontier.points[i].total)
        faults.push_back(fmt::format("'totals[{}].total' is {} after {}, expected rising totals", i,
                                     frontier.points[i].total, frontier.points[i - 1].total));
    }
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return frontier;
}

Frontier read_frontier(const std::filesystem::path& file) {
  return parse_frontier(read_file(file), file.string());
}

}  // namespace allot::evaluation
