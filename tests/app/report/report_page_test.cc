#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "app/report/figures.h"
#include "app/report/report.h"
#include "app/report/run_summary.h"
#include "app/report/verdict.h"
#include "base/error.h"
#include "base/file.h"
#include "base/number_text.h"
#include "base/temporary_directory.h"
#include "tests/app/report/example_run.h"
#include "tests/app/report/xml.h"
#include "tests/names.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ReportInput example_input(const ExampleShape& shape = {}) {
  return {.run = example_run(shape), .ablation = std::nullopt, .tool_version = "9.8.7"};
}

// Layer l of three has 2 l of ten questions right; the base has 9.
evaluation::Ablation example_ablation() {
  std::vector<double> base(10, 1);
  base[0] = 0;
  std::vector<std::vector<double>> layers(3, std::vector<double>(10, 0));
  for (size_t layer = 0; layer < layers.size(); ++layer) std::fill_n(layers[layer].begin(), 2 * layer, 1.0);
  return evaluation::make_ablation({}, {{16, 16, 16}}, base, layers);
}

std::vector<std::string> figure_names(const ReportInput& input) {
  std::vector<std::string> names;
  for (const Figure& figure : make_figures(input, evaluate(input.run))) names.push_back(figure.name);
  return names;
}

// The cells of the row that starts with `name`.
std::vector<std::string> row(const XmlElement& page, const std::string& table, const std::string& name) {
  for (const XmlElement* body : page.all("table", table)) {
    for (const XmlElement* line : body->all("tr")) {
      if (line->all("th").empty() || line->all("th").front()->text != name) continue;
      std::vector<std::string> cells;
      for (const XmlElement* cell : line->all("td")) cells.push_back(cell->text);
      return cells;
    }
  }
  return {};
}

TEST(ReportPage, IsWellFormedAndNeedsNothingFromOutside) {
  for (const ExampleShape& shape :
       {ExampleShape{}, ExampleShape{.layers = 28, .total = 224, .episodes = 400}}) {
    ReportInput input = example_input(shape);
    input.ablation = example_ablation();
    const std::string text = report_page(input);
    const XmlElement page = parse_xml(text);
    EXPECT_EQ(page.name, "html");
    EXPECT_THAT(text, AllOf(Not(HasSubstr("http")), Not(HasSubstr("url(")), Not(HasSubstr("@import"))));
    for (const char* name : {"script", "link", "img", "iframe", "object", "a"}) {
      EXPECT_TRUE(page.all(name).empty()) << name;
    }
  }
}

TEST(ReportPage, SameRunGivesTheSameBytes) {
  EXPECT_EQ(report_page(example_input()), report_page(example_input()));
}

TEST(ReportPage, HeadlineSaysWhatThePairedTestFound) {
  const ReportInput input = example_input();
  const EvaluationRecord evaluation = evaluate(input.run);
  const XmlElement page = parse_xml(report_page(input));
  const std::string verdict = page.all("p", "verdict").at(0)->text;
  EXPECT_THAT(verdict, Names(64, 200, percent(evaluation.learned->value), percent(evaluation.uniform->value),
                             percent(evaluation.dense->value)));
  const evaluation::PairedTest& paired = *evaluation.paired;
  EXPECT_THAT(verdict, Names("better", points(paired.difference), "95%",
                             points_range(paired.interval.low, paired.interval.high)));
}

TEST(ReportPage, HeadlineAdmitsALossAndAnUndecidedTest) {
  ReportInput input = example_input();
  std::swap(input.run.scores[0].scores, input.run.scores[1].scores);
  EXPECT_THAT(parse_xml(report_page(input)).all("p", "verdict").at(0)->text,
              AllOf(Names("worse"), HasSubstr("(-")));
  input.run.scores[0].scores = input.run.scores[1].scores;
  EXPECT_THAT(parse_xml(report_page(input)).all("p", "verdict").at(0)->text,
              Names("no difference", "p\u00a0=\u00a01.000"));
  input.run.scores.clear();
  EXPECT_THAT(parse_xml(report_page(input)).all("p", "verdict").at(0)->text,
              AllOf(Names("not"), Not(Names("better")), Not(Names("worse")), Not(Names("no difference"))));
}

TEST(ReportPage, ControlsAndEpisodesGivenUpAreListedWhereThereAreAny) {
  ReportInput input = example_input();
  EXPECT_TRUE(parse_xml(report_page(input)).all("table", "events").empty());
  const Timestamp at{std::chrono::seconds(1'760'000'000)};
  input.run.controls = {
      {.action = aggregator::ControlAction::kPause, .by = "ann", .at = at},
      {.action = aggregator::ControlAction::kTarget, .reward = 0.65, .by = "<b>", .at = at},
      {.action = aggregator::ControlAction::kStop, .episodes = 90, .by = "target 0.65", .at = at},
      {.action = aggregator::ControlAction::kBounds, .bounds = "3:4", .by = "ann", .at = at},
      {.action = aggregator::ControlAction::kBounds, .by = "ann", .at = at}};
  input.run.bounds = "3:4";
  input.run.given_up = {{{7}, aggregator::GiveUp::kPoisoned, "w1: no memory; w2: no memory", at},
                        {{9}, aggregator::GiveUp::kExhausted, "", at}};
  const XmlElement page = parse_xml(report_page(input));
  const auto tables = page.all("table", "events");
  ASSERT_EQ(tables.size(), 2u);
  const auto cells = [](const XmlElement& table) {
    std::vector<std::string> texts;
    for (const XmlElement* cell : table.all("td")) texts.push_back(cell->text);
    return texts;
  };
  const std::string when = "2025-10-09 08:53:20 UTC";
  EXPECT_THAT(cells(*tables[0]),
              ElementsAre(when, "ann", "pause", when, "<b>", "stop at a mean reward of 0.65", when,
                          "target 0.65", "stop after 90 episodes", when, "ann", "bounds 3:4", when, "ann",
                          "no bounds but the floor"));
  EXPECT_THAT(report_page(input), HasSubstr("bounds 3:4 (changed by control; none at first)"));
  EXPECT_THAT(cells(*tables[1]),
              ElementsAre(when, "7", "failed on different workers: w1: no memory; w2: no memory", when, "9",
                          "its attempts were used up"));
}

TEST(ReportPage, OfManyEpisodesGivenUpTheLastAreListedAndTheOthersCounted) {
  ReportInput input = example_input();
  for (int64_t episode = 0; episode < 120; ++episode)
    input.run.given_up.push_back({{episode}, aggregator::GiveUp::kExhausted, "expired", {}});
  const std::string text = report_page(input);
  EXPECT_THAT(text, AllOf(HasSubstr("<td>119</td>"), HasSubstr("<td>70</td>"), Not(HasSubstr("<td>69</td>")),
                          Names("70 more")));
}

TEST(ReportPage, TablesHoldTheNumbersOfTheRun) {
  const ReportInput input = example_input();
  const EvaluationRecord evaluation = evaluate(input.run);
  const XmlElement page = parse_xml(report_page(input));
  const evaluation::Accuracy& learned = *evaluation.learned;
  EXPECT_THAT(row(page, "scores", "learned"),
              ElementsAre(fmt::format("{} of 200", learned.correct), percent(learned.value),
                          percent_range(learned.interval.low, learned.interval.high)));
  EXPECT_EQ(row(page, "scores", "uniform").at(0), fmt::format("{} of 200", evaluation.uniform->correct));
  EXPECT_EQ(row(page, "scores", "dense").at(0), fmt::format("{} of 200", evaluation.dense->correct));
  EXPECT_THAT(page.all("p", "paired").at(0)->text, Names(evaluation.paired->pairs.only_first, "learned",
                                                         evaluation.paired->pairs.only_second, "uniform"));

  EXPECT_THAT(row(page, "facts", "Learned schedule").at(0),
              Names(fmt::format("{}", fmt::join(input.run.recommended, ","))));
  EXPECT_THAT(row(page, "facts", "Model").at(0), Names("tiny-gsm", "8 layers", 8, 4, 32));
  EXPECT_THAT(row(page, "facts", "Model config").at(0), HasSubstr(std::string(64, 'a')));
  EXPECT_THAT(row(page, "facts", "Tokenizer").at(0), HasSubstr(std::string(64, 'b')));
  EXPECT_THAT(row(page, "facts", "Weights fingerprint").at(0), HasSubstr(std::string(64, 'c')));
  EXPECT_THAT(row(page, "facts", "Learned on").at(0),
              AllOf(Names("data/train.jsonl", 20000), HasSubstr(std::string(64, 'd'))));
  EXPECT_THAT(row(page, "facts", "Verified on").at(0),
              AllOf(Names(200, "data/heldout.jsonl"), HasSubstr(std::string(64, 'e'))));
  EXPECT_THAT(row(page, "facts", "Attention").at(0), Names("sys", "sampled", "exact"));
  EXPECT_THAT(row(page, "facts", "Generation").at(0), Names("bfloat16", "greedy", 96));
  EXPECT_THAT(row(page, "facts", "Budget").at(0), Names(64, 1));
  EXPECT_THAT(row(page, "facts", "Policy").at(0), Names(12, "updates"));
  EXPECT_EQ(row(page, "facts", "Reward").at(0), "right answers");
  EXPECT_THAT(row(page, "facts", "Episodes").at(0), Names(120, 120, 16));
  EXPECT_EQ(row(page, "facts", "Seed").at(0), "42");
  EXPECT_EQ(row(page, "facts", "Time spent").at(0), "1m 23s");
  EXPECT_EQ(row(page, "facts", "Tool").at(0), "allot 9.8.7");
  EXPECT_EQ(row(page, "counters", "granted").at(0), "134");
  EXPECT_EQ(row(page, "counters", "released").at(0), "3");
  EXPECT_EQ(row(page, "counters", "given up").at(0), "0");

  ReportInput ablated = input;
  ablated.ablation = example_ablation();
  ablated.ablation->conditions.measured_on = {.sha256 = std::string(64, 'f'), .questions = 10};
  const XmlElement second = parse_xml(report_page(ablated));
  EXPECT_THAT(row(second, "facts", "Layers measured on").at(0),
              AllOf(Names("10 questions"), HasSubstr(std::string(64, 'f'))));
}

TEST(ReportPage, ARunOfRowsSaysRowsAndWhatTheyAreInSamples) {
  ReportInput input = example_input();
  EXPECT_THAT(report_page(input), AllOf(HasSubstr("With 64 samples"), Not(HasSubstr("64 rows"))));
  input.run.spec.mutable_attention()->set_estimator("joint");
  input.run.spec.mutable_attention()->set_unit("rows");
  const std::string text = report_page(input);
  const XmlElement page = parse_xml(text);
  EXPECT_THAT(row(page, "facts", "Budget").at(0), Names("64 rows", "32 samples", "2 heads"));
  EXPECT_THAT(row(page, "facts", "Learned schedule").at(0), HasSubstr("rows of layer 0"));
  EXPECT_THAT(row(page, "facts", "Attention").at(0), HasSubstr("joint by rows"));
  EXPECT_THAT(text, AllOf(HasSubstr("With 64 rows"), HasSubstr("Value rows per KV head"),
                          HasSubstr("Value rows that the query heads of a KV head share"),
                          Not(HasSubstr("Samples per"))));
}

TEST(ReportPage, NamesFromOutsideCannotBreakThePage) {
  ReportInput input = example_input();
  input.run.spec.mutable_model()->set_id("<b>&\"x\"");
  const XmlElement page = parse_xml(report_page(input));
  EXPECT_THAT(page.all("h1").at(0)->text, HasSubstr("<b>&\"x\""));
  EXPECT_TRUE(page.all("b").empty());
}

TEST(ReportPage, ThePreflightIsThereAndARunThatItStoppedHasNoVerdictButItsReason) {
  ReportInput input = example_input();
  EXPECT_TRUE(parse_xml(report_page(input)).all("section", "preflight").empty());
  wire::Preflight& preflight = input.run.preflight.emplace();
  preflight.set_wanted(32);
  wire::PreflightSchedule& dense = *preflight.add_schedules();
  dense.set_label("dense");
  dense.set_answered(32);
  dense.set_correct(30);
  dense.set_mean(30.0 / 32);
  XmlElement page = parse_xml(report_page(input));
  EXPECT_THAT(page.all("section", "preflight").at(0)->text, Names("32 training questions", "30 of 32 right"));
  EXPECT_THAT(page.all("p", "verdict").at(0)->text, HasSubstr("held-out questions"));
  preflight.set_stop_reason("nothing <to> gain");
  page = parse_xml(report_page(input));
  EXPECT_THAT(page.all("p", "verdict").at(0)->text, Names("stopped", "nothing <to> gain"));
  EXPECT_TRUE(page.all("section", "learning").empty());
  preflight.set_ignored(true);
  EXPECT_FALSE(parse_xml(report_page(input)).all("section", "learning").empty());
}

TEST(ReportPage, SaysWhetherItWasOverWhatIsLostWhatATokenReadsAndHowToRunItAgain) {
  ReportInput input = example_input();
  input.directory = "runs/mine";
  const XmlElement page = parse_xml(report_page(input));
  const Verdict verdict = verdict_of(input.run, "runs/mine");
  EXPECT_THAT(page.all("section", "learning").at(0)->text, Names("not known", "Against dense attention"));
  ASSERT_EQ(page.all("table", "lost").size(), 1u);
  EXPECT_EQ(page.all("table", "lost").at(0)->all("tr").size(), 1 + verdict.lost_questions.size());
  EXPECT_EQ(row(page, "rows", "128k").at(0), std::to_string(verdict.rows.back().dense));
  EXPECT_EQ(row(page, "rows", "128k").at(1), std::to_string(verdict.rows.back().learned));
  EXPECT_THAT(row(page, "facts", "To run it again"), ElementsAre(verdict.command + "\n"));
  EXPECT_THAT(verdict.command, HasSubstr("--run runs/mine"));
}

TEST(ReportPage, UnfinishedRunSaysSo) {
  ReportInput input = example_input();
  input.run.stage = "learn";
  input.run.learned.resize(7);
  const XmlElement page = parse_xml(report_page(input));
  EXPECT_THAT(page.all("p", "notice").at(0)->text, Names("\u201clearn\u201d", 7, 120));
  EXPECT_TRUE(parse_xml(report_page(example_input())).all("p", "notice").empty());
}

TEST(Figures, OfALearnerWithoutSharesAreWhatItDescribes) {
  ReportInput input = example_input({.layers = 2, .total = 10});
  for (auto& version : input.run.versions) {
    const auto number = static_cast<double>(version.version);
    version.described = {.layer_name = "step",
                         .per_layer = {-1 - number, 4 * number},
                         .scalars = {{"spread", 3 / (1 + number)}, {"best", number}}};
  }
  EXPECT_THAT(figure_names(input),
              ElementsAre("accuracy", "schedule", "learning", "spread", "best", "steps"));
  input.run.versions.resize(2);
  const XmlElement svg = parse_xml(layers_chart(input.run, {.width = 720, .height = 250}).inline_svg());
  std::vector<std::string> cells;
  for (const XmlElement* rect : svg.all("rect")) {
    if (rect->attributes.at("height") != "12") cells.push_back(rect->attributes.at("class"));
  }
  // From -2, the least, to 4, the greatest: -1, -2 and 0, 4.
  EXPECT_THAT(cells, ElementsAre("c1", "c0", "c3", "c8"));
  for (auto& version : input.run.versions) version.described = {};
  EXPECT_THAT(figure_names(input), ElementsAre("accuracy", "schedule", "learning"));
}

TEST(Figures, AreThoseForWhichThereIsData) {
  ReportInput input = example_input();
  EXPECT_THAT(figure_names(input), ElementsAre("accuracy", "schedule", "learning", "entropy", "shares"));
  input.ablation = example_ablation();
  EXPECT_EQ(figure_names(input).back(), "ablation");
  input = example_input();
  input.run.scores.clear();
  input.run.versions.resize(1);
  EXPECT_THAT(figure_names(input), ElementsAre("schedule", "learning"));
  input.run.learned.clear();
  input.run.recommended.clear();
  EXPECT_THAT(figure_names(input), ElementsAre());
}

TEST(Figures, BarsOfTheScheduleStandForTheirSamples) {
  const ReportInput input = example_input({.layers = 2, .total = 10});
  ReportInput tiny = input;
  tiny.run.recommended = {7, 3};
  const Chart chart = schedule_chart(tiny.run, {.width = 720, .height = 300});
  const XmlElement svg = parse_xml(chart.inline_svg());
  const auto bars = svg.all("rect", "bar");
  ASSERT_EQ(bars.size(), 2u);
  // The plotting area is 44..656 by 30..258 pixels; the axis ends at 7 * 1.08 samples.
  const double per_sample = (258 - 30) / (7 * 1.08);
  EXPECT_NEAR(std::stod(bars[0]->attributes.at("height")), 7 * per_sample, 0.06);
  EXPECT_NEAR(std::stod(bars[1]->attributes.at("height")), 3 * per_sample, 0.06);
  EXPECT_NEAR(std::stod(bars[0]->attributes.at("x")), 44 + 0.14 * 306, 0.06);
  EXPECT_EQ(bars[0]->all("title").at(0)->text, "Layer 0: 7 learned, 5 uniform");
  const std::string level = fmt::format("{:.1f}", 258 - 5 * per_sample);
  EXPECT_EQ(svg.all("path", "uniform").at(0)->attributes.at("d"),
            fmt::format("M44 {0}L350 {0}L350 {0}L656 {0}", level));
}

TEST(Figures, AnExactLayerHasNoBarAndTheUniformScheduleIsOfTheOthers) {
  ReportInput input = example_input({.layers = 3, .total = 10});
  input.run.spec.mutable_policy()->set_bounds("1:exact");
  input.run.recommended = {7, kExactLayer, 3};
  const XmlElement svg = parse_xml(schedule_chart(input.run, {.width = 720, .height = 300}).inline_svg());
  const auto bars = svg.all("rect", "bar");
  ASSERT_EQ(bars.size(), 3u);
  EXPECT_EQ(bars[0]->all("title").at(0)->text, "Layer 0: 7 learned, 5 uniform");
  EXPECT_EQ(bars[1]->all("title").at(0)->text, "Layer 1: exact learned, exact uniform");
  EXPECT_EQ(std::stod(bars[1]->attributes.at("height")), 0);
  EXPECT_THAT(svg.text, Names("exact"));
}

TEST(Figures, WhatTheLearnerExpectsIsOneChart) {
  ReportInput input = example_input();
  for (auto& version : input.run.versions) {
    if (version.version == 0) continue;
    version.described.scalars.insert(
        version.described.scalars.end(),
        {{"outlook_gain", 0.1}, {"outlook_low", -0.05}, {"outlook_high", 0.25}, {"outlook_left", 0.02}});
  }
  EXPECT_THAT(figure_names(input),
              ElementsAre("accuracy", "schedule", "learning", "outlook", "entropy", "shares"));
  const XmlElement svg = parse_xml(outlook_chart(input.run, {.width = 720, .height = 300}).inline_svg());
  EXPECT_THAT(svg.text, AllOf(Names("over even 10.0"), Names("left 2.0"), Names("Expected gain (points)")));
  EXPECT_EQ(svg.all("path", "band").size(), 1u);
  const std::string line = svg.all("path", "line").at(0)->attributes.at("d");
  EXPECT_NE(line, svg.all("path", "line").at(1)->attributes.at("d"));
}

TEST(Figures, LearningCurveHasADotPerEpisodeAndTheMeanOfTheLastTwenty) {
  ReportInput input = example_input({.episodes = 4, .episodes_per_update = 2});
  const double rewards[] = {0, 1, 0.5, 0.5};
  for (size_t i = 0; i < 4; ++i) input.run.learned[i].reward = rewards[i];
  const Chart chart = learning_chart(input.run, {}, {.width = 720, .height = 300});
  const XmlElement svg = parse_xml(chart.inline_svg());
  // 50..614 by 30..258 pixels for episodes 0 to 4 and rewards 0 to 1.
  EXPECT_EQ(svg.all("path", "dots").at(0)->attributes.at("d"), "M191 258h0M332 30h0M473 144h0M614 144h0");
  EXPECT_EQ(svg.all("path", "line").at(0)->attributes.at("d"), "M191 258L332 144L473 144L614 144");
  EXPECT_EQ(svg.all("path", "rug").at(0)->attributes.at("d"), "M332 258v-6M614 258v-6");
}

TEST(Figures, LongRunsAreThinnedOutToWhatCanBeSeen) {
  const ReportInput input = example_input({.episodes = 50000, .episodes_per_update = 100});
  const std::string svg = learning_chart(input.run, {}, {}).inline_svg();
  const std::string dots = parse_xml(svg).all("path", "dots").at(0)->attributes.at("d");
  EXPECT_LE(std::ranges::count(dots, 'M'), 2000);
  EXPECT_GE(std::ranges::count(dots, 'M'), 1000);
  EXPECT_LT(report_page(input).size(), 1'000'000u);
}

TEST(Figures, EntropyStartsAtThatOfTheUniformSchedule) {
  const ReportInput input = example_input();
  const XmlElement svg =
      parse_xml(number_chart(input.run, "entropy", {.width = 720, .height = 220}).inline_svg());
  const std::string line = svg.all("path", "line").at(0)->attributes.at("d");
  const std::string level = svg.all("line", "uniform").at(0)->attributes.at("y1");
  EXPECT_TRUE(line.starts_with("M44 " + level + "L")) << line << " against " << level;
  EXPECT_THAT(svg.text, Names(fmt::format("uniform {:.2f}", std::log(8))));
  EXPECT_THAT(svg.text,
              Names(fmt::format("learned {:.2f}", *input.run.versions.back().described.find("entropy"))));
}

TEST(Figures, CellsOfTheHeatMapShowTheClassOfTheShare) {
  EXPECT_EQ(share_class(0.1), 0);
  EXPECT_EQ(share_class(0.2), 1);
  EXPECT_EQ(share_class(0.4), 2);
  EXPECT_EQ(share_class(0.7), 3);
  EXPECT_EQ(share_class(1), 4);
  EXPECT_EQ(share_class(1.5), 5);
  EXPECT_EQ(share_class(3), 6);
  EXPECT_EQ(share_class(5), 7);
  EXPECT_EQ(share_class(9), 8);

  ReportInput input = example_input({.layers = 2, .total = 10});
  input.run.versions.resize(3);
  for (size_t i = 0; i < 3; ++i) input.run.versions[i].version = static_cast<int64_t>(i);
  input.run.versions[0].described.per_layer = {0.5, 0.5};
  input.run.versions[1].described.per_layer = {0.75, 0.25};
  input.run.versions[2].described.per_layer = {0.95, 0.05};
  const XmlElement svg = parse_xml(layers_chart(input.run, {.width = 720, .height = 250}).inline_svg());
  // Three columns of 664 / 3 pixels from 44; the key comes after the cells.
  std::vector<std::string> cells;
  for (const XmlElement* rect : svg.all("rect")) {
    if (rect->attributes.at("height") == "12") continue;
    cells.push_back(rect->attributes.at("class") + "@" + rect->attributes.at("x"));
  }
  EXPECT_THAT(cells, ElementsAre("c4@44", "c5@265.3", "c4@44", "c3@265.3", "c0@486.7"));
}

TEST(ReportPage, TimesOfADecodeStepAreShownWhereTheyWereMeasured) {
  ReportInput input = example_input();
  EXPECT_THAT(report_page(input),
              AllOf(HasSubstr("No time was measured; \u201callot bench schedule --run\u201d does."),
                    Not(HasSubstr("Time of a decode step"))));
  input.step_times = evaluation::StepTimes{
      .conditions = {},
      .tool_version = "0.1.0",
      .device = "cuda:0 GPU",
      .sequences = 3,
      .steps = 160,
      .schedule = {input.run.recommended},
      .contexts = {{512, {700, 600, 800}, {640, 630, 650}}, {1024, {812.4, 800, 830}, {655, 640, 700}}}};
  const std::string page = report_page(input);
  EXPECT_THAT(page, Not(HasSubstr("No time was measured")));
  for (const char* shown : {"<th>512</th>", "<th>1k</th>", "Time of a decode step", "812 \u00b5s",
                            "655 \u00b5s", "157 \u00b5s, 19.4%", "cuda:0 GPU",
                            "5 to 95 %: 640 to 700 \u00b5s", "3 sequences together", "medians of 160 steps"})
    EXPECT_THAT(page, HasSubstr(shown));
}

TEST(ReportPage, TimesOfAnotherScheduleThanTheRunsAreNotTaken) {
  const TemporaryDirectory directory;
  aggregator::RunData run;
  run.recommended = {5, 3};
  EXPECT_FALSE(step_times_of(run, directory.path())) << "there are none";
  evaluation::StepTimes times;
  times.conditions = worker::conditions_of(example_run().spec);
  times.tool_version = "0.1.0";
  times.device = "cpu, 2 cores";
  times.steps = 5;
  times.schedule = {{5, 3}};
  write_file_atomically(directory.path() / "step-times.json", evaluation::format_step_times(times));
  EXPECT_TRUE(step_times_of(run, directory.path()));
  run.recommended = {4, 4};
  EXPECT_FALSE(step_times_of(run, directory.path()));
}

TEST(Figures, AblationShowsEachLayersAccuracyWithItsInterval) {
  const evaluation::Ablation ablation = example_ablation();
  const XmlElement svg = parse_xml(ablation_chart(ablation, {.width = 720, .height = 300}).inline_svg());
  const auto whiskers = svg.all("g", "whisker");
  ASSERT_EQ(whiskers.size(), 3u);
  const auto y_of = [](double accuracy) { return 258 - 228 * accuracy; };
  for (size_t layer = 0; layer < 3; ++layer) {
    const XmlElement& line = *whiskers[layer]->all("line").at(0);
    EXPECT_NEAR(std::stod(line.attributes.at("y1")), y_of(ablation.layers[layer].accuracy.interval.low),
                0.06);
    EXPECT_NEAR(std::stod(line.attributes.at("y2")), y_of(ablation.layers[layer].accuracy.interval.high),
                0.06);
    EXPECT_NEAR(std::stod(whiskers[layer]->all("circle").at(0)->attributes.at("cy")),
                y_of(0.2 * double(layer)), 0.06);
  }
  EXPECT_NEAR(std::stod(svg.all("line", "level").at(0)->attributes.at("y1")), y_of(0.9), 0.06);
  EXPECT_THAT(svg.text, HasSubstr("base 90.0%"));
}

// Measured on the embedded model (tests/data/frontier/README.md).
evaluation::Frontier measured_frontier() {
  return evaluation::read_frontier(std::filesystem::path(ALLOT_SOURCE_DIR) /
                                   "tests/data/frontier/tiny_gsm.json");
}

TEST(Figures, FrontierShowsBothCurvesWithTheirBandsAgainstTheTotal) {
  const evaluation::Frontier frontier = measured_frontier();
  const size_t totals = frontier.points.size();
  ASSERT_GE(totals, 3u);
  const XmlElement svg = parse_xml(
      frontier_chart(frontier, kernels::BudgetUnit::kSamples, {.width = 720, .height = 300}).inline_svg());
  // The corners of the area between the ends of the intervals: the upper ones, then back along the lower
  // ones.
  const auto corners_of = [](const XmlElement& path) {
    std::string steps = path.attributes.at("d");
    std::ranges::replace_if(
        steps, [](char c) { return c == 'M' || c == 'L' || c == 'Z'; }, ' ');
    std::istringstream numbers(steps);
    std::vector<double> heights;
    for (double x = 0, y = 0; numbers >> x >> y;) heights.push_back(y);
    return heights;
  };
  const auto bands = svg.all("path", "band");
  ASSERT_EQ(bands.size(), 2u);
  const std::vector<double> uniform_band = corners_of(*bands[0]), learned_band = corners_of(*bands[1]);
  ASSERT_EQ(uniform_band.size(), 2 * totals);
  ASSERT_EQ(learned_band.size(), 2 * totals);
  EXPECT_EQ(svg.all("path", "line").size(), 2u);
  const auto whiskers = svg.all("g", "whisker");
  ASSERT_EQ(whiskers.size(), 2 * totals);
  const auto y_of = [](double accuracy) { return 258 - 228 * accuracy; };
  const auto first = std::log10(static_cast<double>(frontier.points.front().total));
  const auto last = std::log10(static_cast<double>(frontier.points.back().total));
  double left = 0, right = 0;
  for (size_t i = 0; i < totals; ++i) {
    for (const auto& [accuracy, at] :
         {std::pair(frontier.points[i].uniform, i), std::pair(frontier.points[i].learned, totals + i)}) {
      const XmlElement& line = *whiskers[at]->all("line").at(0);
      EXPECT_NEAR(std::stod(line.attributes.at("y1")), y_of(accuracy.interval.low), 0.06);
      EXPECT_NEAR(std::stod(line.attributes.at("y2")), y_of(accuracy.interval.high), 0.06);
      const std::vector<double>& band = at < totals ? uniform_band : learned_band;
      EXPECT_NEAR(band[i], y_of(accuracy.interval.high), 0.06);
      EXPECT_NEAR(band[2 * totals - 1 - i], y_of(accuracy.interval.low), 0.06);
      const double x = std::stod(line.attributes.at("x1"));
      if (i == 0) left = x;
      if (i + 1 == totals) right = x;
    }
  }
  // Even steps of the logarithm.
  for (size_t i = 0; i < totals; ++i) {
    const double at = (std::log10(static_cast<double>(frontier.points[i].total)) - first) / (last - first);
    EXPECT_NEAR(std::stod(whiskers[i]->all("line").at(0)->attributes.at("x1")), left + at * (right - left),
                0.11);
  }
  EXPECT_NEAR(std::stod(svg.all("line", "level").at(0)->attributes.at("y1")), y_of(frontier.dense.value),
              0.06);
  EXPECT_THAT(svg.text, AllOf(Names("uniform", "learned", "dense"), HasSubstr("(re-solved)")));
  for (const evaluation::FrontierPoint& point : frontier.points)
    EXPECT_THAT(svg.text, Names(point.total)) << "a tick";
}

TEST(ReportPage, ShowsTheTotalsThatWereVerifiedAndWhichWereOnlySolved) {
  ReportInput input = example_input();
  EXPECT_THAT(figure_names(input), Not(::testing::Contains("frontier")));
  input.frontier = measured_frontier();
  EXPECT_EQ(figure_names(input).at(1), "frontier");
  const XmlElement page = parse_xml(report_page(input));
  for (const evaluation::FrontierPoint& point : input.frontier->points) {
    EXPECT_THAT(row(page, "totals", std::to_string(point.total)),
                ElementsAre(percent(point.uniform.value),
                            percent_range(point.uniform.interval.low, point.uniform.interval.high),
                            percent(point.learned.value),
                            percent_range(point.learned.interval.low, point.learned.interval.high),
                            points(point.paired.difference)));
    const std::string caption = page.all("figure", "frontier").at(0)->all("figcaption").at(0)->text;
    if (point.resolved) {
      EXPECT_THAT(caption, Names(point.total, "nothing was learned"));
    }
    EXPECT_THAT(caption, Names(input.frontier->dense.questions, "95%"));
  }
}

TEST(ReportPage, SaysWhichEvenTotalIsAsAccurateAndShowsRepliesThatAreLost) {
  ReportInput input = example_input();
  input.frontier = measured_frontier();
  EXPECT_THAT(parse_xml(report_page(input)).all("section", "lost-replies"), testing::IsEmpty());
  input.frontier->lost = {{.question = 17, .dense = "3 < 4\n#### 12", .learned = "#### 9"}};
  const auto own = std::ranges::find(input.frontier->points, false, &evaluation::FrontierPoint::resolved);
  ASSERT_NE(own, input.frontier->points.end());
  input.frontier->even = {{.total = 777, .schedule = own->uniform_schedule, .accuracy = own->learned}};
  const XmlElement page = parse_xml(report_page(input));
  const auto replies = page.all("section", "lost-replies").at(0)->all("pre");
  EXPECT_EQ(page.all("section", "lost-replies").at(0)->all("summary").at(0)->text, "Question 17");
  EXPECT_EQ(replies.at(0)->text, "3 < 4\n#### 12");
  EXPECT_EQ(replies.at(1)->text, "#### 9");
  EXPECT_THAT(report_page(input), Names("the even schedule needs about", 777, own->total));
}

TEST(Figures, NarrowDrawingsKeepTheirTextSizeInsteadOfShrinking) {
  for (const Figure& figure : make_figures(example_input(), evaluate(example_run()))) {
    EXPECT_THAT(figure.wide, HasSubstr("viewBox=\"0 0 720 ")) << figure.name;
    EXPECT_THAT(figure.narrow, HasSubstr("viewBox=\"0 0 340 ")) << figure.name;
  }
}

TEST(WritePlots, WritesEachFigureAsAFileOfItsOwn) {
  const std::filesystem::path directory =
      std::filesystem::path(::testing::TempDir()) / "report_page_test" / "plots";
  std::filesystem::remove_all(directory);
  const std::vector<std::filesystem::path> paths = write_plots(example_input(), directory);
  ASSERT_EQ(paths.size(), 5u);
  EXPECT_EQ(paths[1], directory / "schedule.svg");
  for (const std::filesystem::path& path : paths) EXPECT_EQ(parse_xml(read_file(path)).name, "svg") << path;
}

}  // namespace
}  // namespace allot::app
