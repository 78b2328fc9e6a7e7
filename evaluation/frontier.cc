#include "evaluation/frontier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number_text.h"
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

void read_even(const Json& object, size_t number, int64_t questions, Frontier* frontier,
               std::vector<std::string>* faults) {
  JsonFields fields(object, fmt::format("even[{}]", number), faults);
  EvenPoint point{.total = fields.integer<int64_t>("total", 0)};
  read_side(fields.object("uniform"), questions, point.total, &point.accuracy, &point.schedule);
  if (!frontier->even.empty() && frontier->even.back().total >= point.total)
    fields.fault(fmt::format("{} is {} after {}, expected rising totals", fields.where("total"), point.total,
                             frontier->even.back().total));
  frontier->even.push_back(std::move(point));
}

void read_lost(const Json& object, size_t number, Frontier* frontier, std::vector<std::string>* faults) {
  JsonFields fields(object, fmt::format("lost[{}]", number), faults);
  const auto reply = [&](const char* name) {
    const Json& found = fields.value(name);
    if (found.is_string()) return found.get<std::string>();
    fields.fault(fmt::format("{} is {}, expected a text", fields.where(name), shown(found)));
    return std::string();
  };
  const auto question = fields.integer<uint32_t>("question", 0);
  frontier->lost.push_back({.question = question, .dense = reply("dense"), .learned = reply("learned")});
}

// Calls `read` with each entry of an optional list.
template <class Read>
void read_list(JsonFields* fields, const char* name, std::vector<std::string>* faults, Read read) {
  if (!fields->has(name)) return;
  const Json& list = fields->value(name);
  if (!list.is_array())
    faults->push_back(fmt::format("'{}' is {}, expected a list", name, shown(list)));
  else
    for (size_t i = 0; i < list.size(); ++i) read(list[i], i);
}

// Every even schedule that was measured, in rising order of the totals.
std::vector<EvenPoint> all_even(const Frontier& frontier) {
  std::vector<EvenPoint> all = frontier.even;
  for (const FrontierPoint& point : frontier.points)
    all.push_back({point.total, point.uniform_schedule, point.uniform});
  std::ranges::sort(all, {}, &EvenPoint::total);
  return all;
}

}  // namespace

std::optional<EqualEven> equal_even(const Frontier& frontier) {
  const auto own = std::ranges::find(frontier.points, false, &FrontierPoint::resolved);
  if (own == frontier.points.end()) return std::nullopt;
  EqualEven equal{
      .learned_total = own->total, .learned = own->learned.value, .below = {}, .above = {}, .total = 0};
  const std::vector<EvenPoint> even = all_even(frontier);
  const auto above = std::ranges::find_if(
      even, [&](const EvenPoint& point) { return point.accuracy.value >= equal.learned; });
  if (above != even.begin()) equal.below = *std::prev(above);
  if (above == even.end()) return equal;
  equal.above = *above;
  equal.total = static_cast<double>(above->total);
  if (equal.below && equal.below->total > 0) {
    const double low = std::log(static_cast<double>(equal.below->total));
    const double high = std::log(equal.total);
    const double share =
        (equal.learned - equal.below->accuracy.value) / (above->accuracy.value - equal.below->accuracy.value);
    equal.total = std::exp(low + share * (high - low));
  }
  return equal;
}

std::optional<int64_t> next_even_total(const Frontier& frontier, int64_t most) {
  const auto equal = equal_even(frontier);
  if (!equal) return std::nullopt;
  if (!equal->above) {
    const int64_t largest = equal->below->total;
    if (largest >= most) return std::nullopt;
    return std::min(most, std::max<int64_t>(1, 2 * largest));
  }
  if (!equal->below) return std::nullopt;
  const int64_t low = equal->below->total, high = equal->above->total;
  if (high - low <= std::max<int64_t>(1, low / 10)) return std::nullopt;
  const auto middle = static_cast<int64_t>(
      std::lround(std::sqrt(static_cast<double>(std::max<int64_t>(1, low)) * static_cast<double>(high))));
  return std::clamp(middle, low + 1, high - 1);
}

std::string text(const EqualEven& equal, std::string_view unit) {
  const std::string learned =
      fmt::format("the learned one of {}, {}", equal.learned_total, percent(equal.learned));
  const auto gives = [](const EvenPoint& point) {
    return fmt::format("{} give {}", point.total, percent(point.accuracy.value));
  };
  if (!equal.above)
    return fmt::format("no even schedule that was measured is as accurate as {}: {}", learned,
                       gives(*equal.below));
  if (!equal.below)
    return fmt::format("the even schedule is as accurate as {}: {}", learned, gives(*equal.above));
  return fmt::format(
      "the even schedule needs about {:.0f} {} ({:.2g} times as many) to be as accurate as {}: {}, {}",
      equal.total, unit, equal.total / static_cast<double>(equal.learned_total), learned, gives(*equal.below),
      gives(*equal.above));
}

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
  for (const EvenPoint& point : frontier.even)
    json["even"].push_back({{"total", point.total}, {"uniform", side_json(point.accuracy, point.schedule)}});
  for (const LostReplies& lost : frontier.lost)
    json["lost"].push_back({{"question", lost.question}, {"dense", lost.dense}, {"learned", lost.learned}});
  // A reply may end within a character.
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Frontier parse_frontier(std::string_view text, const std::string& place) {
  const Json json = parse_document(text, kFrontierVersion, place);
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
    read_list(&fields, "even", &faults, [&](const Json& object, size_t number) {
      read_even(object, number, frontier.dense.questions, &frontier, &faults);
    });
    read_list(&fields, "lost", &faults,
              [&](const Json& object, size_t number) { read_lost(object, number, &frontier, &faults); });
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return frontier;
}

Frontier read_frontier(const std::filesystem::path& file) {
  return parse_frontier(read_file(file), file.string());
}

}  // namespace allot::evaluation
