// What a schedule file keeps so that schedules of other totals follow from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/files/schedule_file.h"
#include "base/error.h"
#include "base/json.h"
#include "tests/app/files/example_schedule.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::Not;
using Json = nlohmann::ordered_json;

CalibrationRecord calibrated() {
  CalibrationCheck check;
  check.texts = 3;
  check.positions = 9;
  return {.mode = "reply", .check = check};
}

// The example with costs of that model, whose solution its schedule is.
ScheduleFile with_costs(policy::CostModel model) {
  ScheduleFile file = example();
  policy::LayerCosts costs{.model = model};
  if (model == policy::CostModel::kShares) {
    costs.shares = {0.675, 0.2125, 0.075, 0.0375};
  } else {
    costs.unit = 8;
    costs.fitted = policy::TotalRange{.low = 20, .high = 90};
  }
  if (model == policy::CostModel::kDivergence) {
    costs.scales = {1, -0.5, -1.25, -2};
    costs.exponents = {1, 0.9, 1.1, 1.3};
  } else if (model == policy::CostModel::kResponse) {
    costs.weights = {
        {0, 0, 1, 3, 0, 0}, {0, 0, 0, 0.5, 0, 0}, {0, 0, 0, 0.25, 0, 0.125}, {0.1, 0, 0, 0, 0, 0}};
  }
  file.costs = policy::anchored(std::move(costs), file.schedule, file.floor);
  EXPECT_EQ(file.costs->model, model);
  return file;
}

constexpr policy::CostModel kCostModels[] = {policy::CostModel::kResponse, policy::CostModel::kDivergence,
                                             policy::CostModel::kShares};

TEST(ScheduleFile, KeepsWhatOtherTotalsFollowFrom) {
  for (const policy::CostModel model : kCostModels) {
    const ScheduleFile file = with_costs(model);
    const std::string text = format_schedule_file(file);
    EXPECT_EQ(parse_schedule_file(text, "s.json"), file) << name(model);
    EXPECT_EQ(Json::parse(text).at("schema_version"), 2);
    EXPECT_LT(text.size(), format_schedule_file(example()).size() + 1000);
    for (const int64_t total : {4, 5, 31, 33, 100}) {
      const ScheduleFile resolved = resolve_total(file, total);
      EXPECT_EQ(resolved.schedule, policy::solve(*file.costs, file.schedule, total, 1));
      EXPECT_NO_THROW(policy::check_schedule(resolved.schedule, 4, 1, total));
    }
  }
  EXPECT_THAT(format_schedule_file(with_costs(policy::CostModel::kResponse)),
              ::testing::HasSubstr("    \"fitted_totals\": [20, 90],\n    \"weights\": [\n      [0.0, "));
}

TEST(ScheduleFile, CostsThatGiveAnotherScheduleAreRefusedWithBoth) {
  for (const policy::CostModel model : kCostModels) {
    Json json = Json::parse(format_schedule_file(with_costs(model)));
    json["samples"] = {19, 8, 3, 2};
    EXPECT_THAT(refusal(json), Names("costs", "20,7,3,2", "samples", "19,8,3,2")) << name(model);
  }
}

TEST(ScheduleFile, EveryFaultOfCostsIsNamed) {
  const auto refused = [](policy::CostModel model, const std::string& pointer, const Json& value) {
    Json json = Json::parse(format_schedule_file(with_costs(model)));
    json[Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  const auto response = policy::CostModel::kResponse;
  EXPECT_THAT(refused(response, "/costs/model", "cubic"), Names("costs.model", "cubic", "divergence"));
  EXPECT_THAT(refused(response, "/costs/unit", 0), Names("costs.unit", 0));
  EXPECT_THAT(refused(response, "/costs/fitted_totals", {9, 3}), Names("costs.fitted_totals", "[9,3]"));
  EXPECT_THAT(refused(response, "/costs/weights", {1, 2}), Names("costs.weights", "[1,2]", 4));
  EXPECT_THAT(refused(response, "/costs/weights/2", {1, 2}), Names("costs.weights[2]", "[1,2]", 6));
  EXPECT_THAT(refused(response, "/costs/weights/2/0", -1), Names("costs.weights[2]", 6, 0));
  EXPECT_THAT(refused(response, "/costs/scales", {1, 2, 3, 4}), Names("costs.scales", "field"));
  EXPECT_THAT(refused(policy::CostModel::kDivergence, "/costs/exponents/1", 0), Names("costs.exponents", 4));
  EXPECT_THAT(refused(policy::CostModel::kShares, "/costs/shares", {0, 0, 0, 0}), Names("costs.shares", 0));
  EXPECT_THAT(refused(policy::CostModel::kShares, "/costs/shares", "0.25"), Names("costs.shares", "0.25"));
}

TEST(ResolveTotal, IsTheFileItselfAtItsOwnTotal) {
  for (const policy::CostModel model : kCostModels)
    EXPECT_EQ(resolve_total(with_costs(model), 32), with_costs(model));
  EXPECT_EQ(resolve_total(example(), 32), example()) << "needs no costs";
}

TEST(ResolveTotal, CarriesNothingThatWasMeasuredOfAnotherSchedule) {
  ScheduleFile file = with_costs(policy::CostModel::kResponse);
  file.start.samples = {14, 10, 6, 2};
  file.calibration = calibrated();
  const ScheduleFile resolved = resolve_total(file, 48);
  EXPECT_EQ(resolved.total, 48);
  EXPECT_EQ(resolved.resolved_from, 32);
  EXPECT_EQ(resolved.evaluation, EvaluationRecord{});
  EXPECT_FALSE(resolved.conditions.measured_on);
  EXPECT_FALSE(resolved.calibration->check);
  EXPECT_TRUE(resolved.start.samples.empty());
  EXPECT_EQ(resolved.run_id, file.run_id);
  EXPECT_EQ(resolved.conditions.attention, file.conditions.attention);
  const std::string text = format_schedule_file(resolved);
  EXPECT_EQ(parse_schedule_file(text, "s.json"), resolved);
  EXPECT_THAT(text,
              ::testing::HasSubstr("\"resolved\": {\n    \"from_total\": 32,\n    \"verified\": false"));
  // And from there on as from the run itself.
  EXPECT_EQ(resolve_total(resolved, 100).schedule, resolve_total(file, 100).schedule);
  EXPECT_EQ(resolve_total(resolved, 100).resolved_from, 32);
  EXPECT_EQ(resolve_total(resolved, 32).schedule, file.schedule);
}

TEST(ResolveTotal, AFileThatClaimsEvidenceForAResolvedScheduleIsRefused) {
  const Json resolved =
      Json::parse(format_schedule_file(resolve_total(with_costs(policy::CostModel::kResponse), 48)));
  Json json = resolved;
  json["evaluation"]["dense"] = Json::parse(format_schedule_file(example()))["evaluation"]["dense"];
  EXPECT_THAT(refusal(json), Names("resolved", "not verified", "evaluation"));
  json = resolved;
  json["resolved"]["verified"] = true;
  EXPECT_THAT(refusal(json), Names("resolved.verified", "true"));
  json = resolved;
  json.erase("costs");
  EXPECT_THAT(refusal(json), Names("resolved", "costs"));
}

TEST(ResolveTotal, AScheduleCalibratedOnPlainTextStaysOneWithoutATask) {
  ScheduleFile file = with_costs(policy::CostModel::kDivergence);
  file.evaluation = {};
  file.conditions.measured_on.reset();
  file.conditions.task = {};
  file.conditions.unknown = {"task.name", "task.version", "task.prompt_style"};
  file.calibration = calibrated();
  const ScheduleFile resolved = resolve_total(file, 48);
  EXPECT_EQ(parse_schedule_file(format_schedule_file(resolved), "s.json"), resolved);
}

TEST(ResolveTotal, SaysThatNothingWasVerifiedAndWhereItExtrapolates) {
  const ScheduleFile file = with_costs(policy::CostModel::kResponse);
  EXPECT_EQ(resolved_text(file), "");
  EXPECT_THAT(resolved_text(resolve_total(file, 90)), AllOf(Names(32, "not verified"), Not(Names("far"))));
  for (const int64_t total : {19, 91})
    EXPECT_THAT(resolved_text(resolve_total(file, total)), Names(32, "not verified", total, "far", 20, 90));
  EXPECT_THAT(resolved_text(resolve_total(with_costs(policy::CostModel::kShares), 33)),
              Names("not verified", "shares", "nothing of other totals"));
}

TEST(ResolveTotal, AFileThatKeepsNothingIsRefusedWithWhatToDo) {
  EXPECT_THAT(
      [] { (void)resolve_total(example(), 40); },
      ::testing::ThrowsMessage<InvalidArgument>(Names("r-1", 40, 32, "0.1.0", "allot calibrate --total 40")));
  EXPECT_THAT([] { (void)resolve_total(with_costs(policy::CostModel::kResponse), 3); },
              ::testing::ThrowsMessage<InvalidArgument>(Names(3, 4)));
}

}  // namespace
}  // namespace allot::app
