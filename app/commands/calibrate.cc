// allot calibrate: learns schedules from the divergence of sampled from exact attention on texts, without
// replies and grades.
#include <fmt/ranges.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/files/measurement_file.h"
#include "app/report/calibration_figures.h"
#include "app/report/png.h"
#include "app/scoring/calibration_plan.h"
#include "app/scoring/engine_here.h"
#include "app/scoring/fidelity_engine.h"
#include "app/scoring/reply_engine.h"
#include "app/scoring/scoring.h"
#include "app/view/progress_line.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/accuracy_loss.h"
#include "evaluation/json_fields.h"
#include "policy/divergence_model.h"

namespace allot::app {
namespace {

using evaluation::Calibration;
using evaluation::TextFidelity;

// Samples of a layer at which the search for a total begins.
constexpr int32_t kFirstSamples = 4;
constexpr const char* kVerificationFile = "verification.json";

// What totals count.
struct Unit {
  kernels::BudgetUnit unit;
  int32_t heads;     // query heads of a KV head
  std::string name;  // of the unit

  explicit Unit(const CalibrationPlan& plan)
      : unit(plan.texts.conditions.attention.unit),
        heads(plan.texts.conditions.model.num_q_heads / plan.texts.conditions.model.num_kv_heads),
        name(kernels::name(unit)) {}
  std::string text(int64_t total) const { return kernels::budget_text(unit, total, heads); }
};

// A total's result and what it took.
struct Calibrated {
  Calibration calibration;
  std::filesystem::path file;
  double seconds = 0;
  std::optional<evaluation::AccuracyLoss> loss = {};  // where totals are verified
};

// Measures texts of the plan under schedules with `engine`.
class Measurement {
 public:
  Measurement(const CalibrationPlan& plan, model::Engine* engine)
      : plan_(plan), engine_(*engine), stop_(watch_stop_signals()) {}

  std::vector<TextFidelity> operator()(std::span<const size_t> texts,
                                       std::span<const policy::Schedule> schedules, uint32_t sampling_seed) {
    if (stop_.load())
      throw Error("stopped before the search was at its end; schedules of the totals before are written");
    const evaluation::Conditions& conditions = plan_.texts.conditions;
    std::vector<model::FidelityText> given;
    for (const size_t text : texts)
      given.push_back(fidelity_text(plan_.texts, plan_.texts.texts[text], sampling_seed));
    std::vector<model::FidelityPair> pairs;
    for (const policy::Schedule& schedule : schedules)
      for (size_t text = 0; text < texts.size(); ++text)
        pairs.push_back({.text = text, .samples = schedule.samples, .attention = conditions.attention});
    std::vector<TextFidelity> measured;
    for (const model::Fidelity& result :
         engine_.fidelity(given, pairs, {.mode = fidelity_mode(plan_.texts.options.mode)}))
      measured.push_back(text_fidelity(result));
    std::vector<double> divergences;
    for (size_t i = 0; i < schedules.size(); ++i)
      divergences.push_back(
          evaluation::mean_divergence(std::span(measured).subspan(i * texts.size(), texts.size())));
    lines_ += measurement_lines(batches_++, schedules, divergences);
    return measured;
  }

  // Everything measured so far, as the lines of its file.
  const std::string& lines() const { return lines_; }

 private:
  const CalibrationPlan& plan_;
  model::Engine& engine_;
  const std::atomic<bool>& stop_;
  std::string lines_;
  int64_t batches_ = 0;
};

struct Results {
  std::vector<Calibrated> totals;      // in the order in which they were measured
  std::optional<int64_t> least_total;  // within the margin, where one was asked for and found
};

// Verifies what was found for a total with answers, beside those of dense attention.
class Verification {
 public:
  explicit Verification(const CalibrationPlan& plan)
      : margin_(plan.accuracy->margin),
        model_(engine_options_of(plan)),
        scorer_(plan.accuracy->scoring, &model_) {}

  model::Engine& engine() {
    scorer_.load();
    return model_.engine();
  }
  evaluation::AccuracyLoss operator()(const policy::Schedule& schedule) {
    if (dense_.empty()) dense_ = scores_of({.label = "dense", .schedule = {}, .file = {}});
    return evaluation::accuracy_loss(
        scores_of({.label = schedule.to_string(), .schedule = schedule, .file = {}}), dense_, margin_);
  }

 private:
  static model::EngineOptions engine_options_of(const CalibrationPlan& plan) {
    const ScoringPlan& scoring = plan.accuracy->scoring;
    model::EngineOptions options = engine_options(scoring.options, scoring.conditions);
    options.prefill_chunk_tokens = plan.texts.options.prefill_chunk;
    for (const FidelityItem& text : plan.texts.texts)
      options.sequence_tokens = std::max(options.sequence_tokens.value_or(0), std::ssize(text.ids));
    return options;
  }
  std::vector<double> scores_of(const NamedSchedule& schedule) {
    return scorer_.score(std::span(&schedule, 1)).front().scores;
  }

  double margin_;
  EngineHere model_;
  Scorer scorer_;
  std::vector<double> dense_;  // scores
};

// By total.
std::vector<const Calibrated*> rising(const Results& results) {
  std::vector<const Calibrated*> totals;
  for (const Calibrated& one : results.totals) totals.push_back(&one);
  std::ranges::sort(totals, {}, [](const Calibrated* one) { return one->calibration.schedule.total(); });
  return totals;
}

// Every verified total, for the file beside their schedules.
std::string verification_file(const CalibrationPlan& plan, const Results& results) {
  nlohmann::ordered_json json = {{"schema_version", 1},
                                 {"conditions", evaluation::to_json(plan.accuracy->scoring.conditions)},
                                 {"tool_version", version()},
                                 {"margin", plan.accuracy->margin}};
  json["least_total"] = results.least_total ? nlohmann::ordered_json(*results.least_total) : nullptr;
  json["totals"] = nlohmann::ordered_json::array();
  for (const Calibrated* one : rising(results)) {
    nlohmann::ordered_json total = {{"total", one->calibration.schedule.total()},
                                    {"samples", evaluation::samples_json(one->calibration.schedule.samples)}};
    total.update(evaluation::to_json(one->loss.value()));
    json["totals"].push_back(std::move(total));
  }
  return json.dump(2) + "\n";
}

// Where the search for a total begins.
int64_t first_total(const CalibrationPlan& plan, const Unit& unit) {
  const evaluation::TotalsToTry totals = evaluation::totals_to_try(plan.search);
  const int32_t samples = kFirstSamples * (unit.unit == kernels::BudgetUnit::kRows ? unit.heads : 1);
  return std::clamp(int64_t{evaluation::layers_that_sample(plan.search)} * samples, totals.least,
                    totals.most);
}

Results calibrate_all(const CalibrationPlan& plan) {
  // One model serves both the divergences and the answers.
  std::optional<Verification> verify;
  std::optional<model::Engine> engine;
  if (plan.accuracy) {
    verify.emplace(plan);
  } else {
    engine.emplace(plan.texts.options.model, fidelity_engine_options(plan.texts));
  }
  Measurement measure(plan, verify ? &verify->engine() : &*engine);
  const SystemClock clock;
  const int layers = evaluation::layers_that_sample(plan.search);
  const Unit unit(plan);
  const int64_t first = plan.totals.empty() ? first_total(plan, unit) : plan.totals.front();
  policy::DivergenceModel model(layers, static_cast<double>(first) / layers);
  Results results;
  const auto calibrate_total = [&](int64_t total) {
    const Timestamp start = clock.now();
    ProgressLine line(fmt::format("batches at {} {}", total, unit.name));
    const Calibration found =
        evaluation::calibrate(total, plan.texts.texts.size(), plan.search, std::ref(measure), &model,
                              [&](int64_t at, int64_t wanted) { line.update(at, wanted); });
    Calibrated made{.calibration = found, .file = plan.out / fmt::format("schedule-{}.json", total)};
    if (verify) made.loss = (*verify)(found.schedule);
    made.seconds = std::chrono::duration<double>(clock.now() - start).count();
    write_schedule_file(made.file, schedule_file(plan, found, made.loss));
    if (!plan.measurements.empty())
      write_file_atomically(
          plan.measurements,
          measurement_head(plan.texts.conditions, plan.texts.options.mode, plan.search.texts_per_step) +
              measure.lines());
    results.totals.push_back(std::move(made));
    return found;
  };
  if (plan.margin) {
    results.least_total = evaluation::least_total(*plan.margin, first, plan.search, calibrate_total, model);
  } else if (plan.accuracy) {
    const auto keep = [&] {
      write_file_atomically(plan.out / kVerificationFile, verification_file(plan, results));
    };
    results.least_total = evaluation::least_total(first, plan.search, [&](int64_t total) {
      calibrate_total(total);
      keep();
      return results.totals.back().loss->verdict() == evaluation::MarginVerdict::kWithin;
    });
    keep();
  } else {
    for (const int64_t total : plan.totals) calibrate_total(total);
  }
  return results;
}

std::string table(std::span<const Calibrated> done) {
  const bench::Table table({{"total", 8},
                            {"uniform", 12},
                            {"learned", 12},
                            {"ratio", 10},
                            {"95% interval", 20},
                            {"top-1 %", 9, 2},
                            {"uniform's", 11, 2},
                            {"seconds", 9, 1},
                            {"", 2},
                            {"file", -1}});
  std::string text = table.head();
  for (const Calibrated& one : done) {
    const Calibration& found = one.calibration;
    text +=
        table.line({found.schedule.total(), fmt::format("{:.3e}", found.uniform.mean),
                    fmt::format("{:.3e}", found.learned.mean), fmt::format("{:.3g}", found.ratio),
                    fmt::format("{:.3g} to {:.3g}", found.ratio_low, found.ratio_high),
                    100 * found.top1_learned, 100 * found.top1_uniform, one.seconds, "", one.file.string()});
  }
  return text;
}

// Schedule and sensitivities of a total, a line a layer.
std::string layers_table(const Calibration& found, const CalibrationPlan& plan) {
  const Unit unit(plan);
  std::string text = fmt::format("\n{}: {}\n", unit.text(found.schedule.total()), found.schedule.to_string());
  if (found.even)
    text += fmt::format("no schedule was better than the even one{} on the texts of the check\n",
                        plan.search.bounds.empty() ? "" : " within the bounds");
  if (found.sensitivities.empty()) return text;
  const std::vector<int32_t> exact = plan.search.bounds.exact_layers(plan.search.layers);
  if (!exact.empty())
    text += fmt::format("layer{} {} {} exact and left out\n", exact.size() == 1 ? "" : "s",
                        fmt::join(exact, ", "), exact.size() == 1 ? "is" : "are");
  const bench::Table table(
      {{"layer", 5}, {unit.name.c_str(), 9}, {"one more", 11, 4}, {"+-", 8, 4}, {"one fewer", 11}});
  text += table.head();
  for (size_t layer = 0; layer < found.sensitivities.size(); ++layer) {
    if (!found.sensitivities[layer]) continue;
    const policy::LayerSensitivity& of = *found.sensitivities[layer];
    text +=
        table.line({static_cast<int64_t>(layer), found.schedule.samples[layer], of.one_more, of.error,
                    std::isfinite(of.one_fewer) ? fmt::format("{:.4f}", of.one_fewer) : std::string("-")});
  }
  return text;
}

std::string verdict(const Results& results, double margin, const Unit& unit) {
  if (results.least_total)
    return fmt::format("the least total within {} nats: {}\n", margin, unit.text(*results.least_total));
  return fmt::format("no total up to {} is within {} nats; give a larger --margin\n",
                     unit.text(results.totals.back().calibration.schedule.total()), margin);
}

// What the answers say of every total, in rising order, and of the least one within the margin.
std::string accuracy_verdict(const Results& results, const CalibrationPlan& plan) {
  const Unit unit(plan);
  const double points = 100 * plan.accuracy->margin;
  const evaluation::AccuracyLoss& first = results.totals.front().loss.value();
  std::string text = fmt::format(
      "\nright of {} held-out questions, greedy: dense {}\na total is within {} points where the upper end of "
      "its loss's 95% interval is; the estimate does not decide\n",
      first.dense.questions, evaluation::text(first.dense), points);
  const bench::Table table(
      {{"total", 8}, {"learned", 24}, {"", 2}, {"against dense (95% interval of the loss)", -42}, {"", -1}});
  text += table.head();
  std::vector<int64_t> undecided;
  const std::vector<const Calibrated*> totals = rising(results);
  for (const Calibrated* one : totals) {
    const int64_t total = one->calibration.schedule.total();
    const evaluation::AccuracyLoss* const loss = &one->loss.value();
    text += table.line({total, evaluation::text(loss->learned), "", evaluation::text(*loss),
                        std::string(evaluation::name(loss->verdict()))});
    if (loss->verdict() == evaluation::MarginVerdict::kUndecided &&
        (!results.least_total || total < *results.least_total))
      undecided.push_back(total);
  }
  if (results.least_total)
    text += fmt::format("the least total within {} points: {}\n", points, unit.text(*results.least_total));
  else
    text +=
        fmt::format("no total up to {} is seen to be within {} points; give a larger --accuracy-margin{}\n",
                    unit.text(totals.back()->calibration.schedule.total()), points,
                    undecided.empty() ? "" : ", or more questions");
  if (!undecided.empty())
    text += fmt::format(
        "{} questions cannot decide about {}: the margin lies in the interval, so {} counts as too small; more "
        "questions (--heldout, --heldout-questions) may show a smaller total\n",
        first.dense.questions, fmt::join(undecided, ", "), undecided.size() == 1 ? "it" : "each");
  return text;
}

std::string json_line(const Calibrated& one, const CalibrationPlan& plan) {
  nlohmann::ordered_json json = evaluation::to_json(one.calibration);
  json["floor"] = plan.search.floor;
  if (!plan.search.bounds.empty()) json["bounds"] = plan.search.bounds.to_string();
  json["file"] = one.file.string();
  json["seconds"] = one.seconds;
  if (plan.margin) {
    json["margin"] = *plan.margin;
    json["within_margin"] = one.calibration.learned.mean <= *plan.margin;
  }
  if (one.loss) json["accuracy"] = evaluation::to_json(*one.loss);
  json["steps"] = plan.search.steps;
  json["mode"] = plan.texts.options.mode;
  json["device"] = plan.texts.options.device;
  json["threads"] = plan.texts.options.threads;
  json["tool_version"] = version();
  json["conditions"] = evaluation::to_json(plan.texts.conditions);
  return bench::json_line(json);
}

}  // namespace

int run_calibrate(std::span<const std::string> arguments) {
  CalibrationPlanOptions options;
  bool png = false, json = false;
  OptionSet set(
      "calibrate",
      "learn schedules from the divergence of sampled from exact attention on texts, without replies",
      "allot calibrate --model assets/tiny-gsm --data assets/tiny-gsm/train.jsonl --limit 256 "
      "--total 64");
  declare_calibration_options(&set, &options);
  set.flag("png", &png, "draw the plots as PNG files too (needs rsvg-convert of the package librsvg2-bin)");
  set.flag("json", &json, "print one JSON object a total");
  CalibrationPlan plan;
  set.resolve_with([&] { plan = plan_calibration(&options, &set); });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const Results results = calibrate_all(plan);
  const std::vector<Calibrated>& done = results.totals;
  if (json) {
    for (const Calibrated& one : done) std::cout << json_line(one, plan);
  } else {
    std::cout << describe(plan) << "\n"
              << "mean KL(dense || sampled), nats, on texts and draws of the check\n"
              << table(done);
    if (plan.margin) std::cout << verdict(results, *plan.margin, Unit(plan));
    if (plan.accuracy) std::cout << accuracy_verdict(results, plan);
    for (const Calibrated& one : done) std::cout << layers_table(one.calibration, plan);
  }
  std::vector<Calibration> calibrations;
  for (const Calibrated& one : done) calibrations.push_back(one.calibration);
  list_plots(write_calibration_plots(calibrations, Unit(plan).unit, plan.out), png, std::cerr);
  return 0;
}

}  // namespace allot::app
