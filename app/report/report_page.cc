#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>

#include "aggregator/run_spec.h"
#include "aggregator/wire_conversion.h"
#include "app/report/figures.h"
#include "app/report/markup.h"
#include "app/report/report.h"
#include "app/report/run_summary.h"
#include "app/report/run_text.h"
#include "app/report/verdict.h"
#include "base/number_text.h"
#include "kernels/method.h"
#include "policy/learner.h"
#include "policy/schedule.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

// One row of a table of settings; the code is set in a typewriter face below the text.
struct Fact {
  const char* name;
  std::string text;
  std::string code = {};
};

constexpr double kSignificant = 0.05;
// The last of the episodes that were given up.
constexpr size_t kGivenUpListed = 50;

constexpr const char* kPageStyle = R"css(
* { box-sizing: border-box; }
html { background: var(--paper); color: var(--ink); color-scheme: light dark; -webkit-text-size-adjust: 100%; }
body { max-width: 47rem; margin: 0 auto; padding: 3.5rem 1.5rem 4rem; font: 1.0625rem/1.6 Charter, "Bitstream Charter", "Sitka Text", Cambria, Georgia, serif; }
header { border-bottom: 1px solid var(--rule); padding-bottom: 1.75rem; margin-bottom: 2rem; }
.kicker { margin: 0 0 .5rem; font: .8125rem/1.4 system-ui, sans-serif; color: var(--quiet); overflow-wrap: anywhere; }
h1 { margin: 0 0 1rem; font-size: 2.125rem; line-height: 1.2; font-weight: 600; letter-spacing: -.01em; text-wrap: balance; overflow-wrap: anywhere; }
h2 { margin: 0 0 .6rem; font-size: 1.25rem; line-height: 1.3; font-weight: 600; text-wrap: balance; }
p { margin: 0 0 1rem; text-wrap: pretty; }
.verdict { font-size: 1.25rem; line-height: 1.5; margin: 0; }
.notice { margin: 1rem 0 0; padding-left: .9rem; border-left: 3px solid var(--uniform); }
section, figure { margin: 0 0 3rem; break-inside: avoid; }
.accuracy, .frontier { margin-bottom: 1.25rem; }
.lost-replies pre { white-space: pre-wrap; margin: .25rem 0 .75rem; }
.lost-replies h3 { font-size: .875rem; margin: .5rem 0 0; }
.lost-replies summary { cursor: pointer; }
figcaption { margin-top: .6rem; font-size: .9375rem; line-height: 1.5; color: var(--quiet); text-wrap: pretty; }
figure .narrow { display: none; }
table { width: 100%; border-collapse: collapse; font-size: .9375rem; font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: .4rem 1rem .4rem 0; text-align: left; vertical-align: baseline; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th { font: 600 .8125rem/1.4 system-ui, sans-serif; color: var(--quiet); border-bottom-color: var(--edge); }
tbody th { font-weight: 400; }
.scores td, .scores thead th + th { text-align: right; white-space: nowrap; }
.facts th { width: 24%; color: var(--quiet); }
.facts td { overflow-wrap: anywhere; }
.counters td + td { width: 70%; color: var(--quiet); }
.counters th { width: 16%; white-space: nowrap; } .counters td:nth-child(2) { text-align: right; padding-right: 1.5rem; }
.events td:first-child { white-space: nowrap; } .events td:last-child { width: 60%; overflow-wrap: anywhere; }
sup { line-height: 0; font-size: .72em; }
.paired { margin: .75rem 0 0; font-size: .9375rem; line-height: 1.5; color: var(--quiet); }
code { display: block; font: .75rem/1.6 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
footer { border-top: 1px solid var(--rule); padding-top: 1rem; font-size: .875rem; color: var(--quiet); }
@media (max-width: 36rem) {
  body { padding: 1.75rem 1rem 2.5rem; font-size: 1rem; }
  h1 { font-size: 1.625rem; }
  .verdict { font-size: 1.125rem; }
  figure .wide { display: none; } figure .narrow { display: block; }
  table { font-size: .875rem; } th, td { padding-right: .6rem; } thead th { font-size: .75rem; }
  .facts th { width: 30%; } .events td:first-child { white-space: normal; }
}
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } }
)css";

// As markup: "= 0.032", or "= 3.1 x 10^-24" where decimals would say nothing.
std::string p_value_markup(double p) {
  const std::string value = p_value_text(p);
  const size_t exponent = value.find("e-");
  std::string markup = value.starts_with('<') ? "&lt;" : "=";
  if (exponent == std::string::npos) return markup + "\u00a0" + value.substr(2);
  const std::string factor = value.substr(2, exponent - 2);
  markup += factor == "1" ? "\u00a0" : "\u00a0" + factor + "\u00a0\u00d7\u00a0";
  return fmt::format("{}10<sup>\u2212{}</sup>", markup, value.substr(exponent + 2));
}

// What the run showed, in a sentence or two.
void write_verdict(Markup* page, const aggregator::RunData& run, const EvaluationRecord& evaluation) {
  if (stopped_by_preflight(run)) {
    page->element("p", {{"class", "verdict"}},
                  fmt::format("The run stopped before learning: {}.", run.preflight->stop_reason()));
    return;
  }
  if (!evaluation.paired) {
    page->element("p", {{"class", "verdict"}},
                  "The learned schedule has not been compared with the uniform one yet.");
    return;
  }
  const evaluation::PairedTest& paired = *evaluation.paired;
  const char* finding = paired.p_value >= kSignificant ? "no difference could be shown"
                        : paired.difference > 0        ? "it is better"
                                                       : "it is worse";
  page->open("p", {{"class", "verdict"}});
  page->text(
      fmt::format("With {} the learned schedule answers {} of {} held-out questions, the uniform "
                  "schedule {}: {} ({}, 95% interval {}; {}, p\u00a0",
                  total_text(run.spec), percent(evaluation.learned->value), evaluation.learned->questions,
                  percent(evaluation.uniform->value), finding, points(paired.difference),
                  points_range(paired.interval.low, paired.interval.high), paired.method()));
  page->insert(p_value_markup(paired.p_value)).text(").");
  if (evaluation.dense)
    page->text(fmt::format(" Dense attention answers {}.", percent(evaluation.dense->value)));
  page->close();
}

void write_header(Markup* page, const aggregator::RunData& run, const EvaluationRecord& evaluation) {
  const wire::RunSpec& spec = run.spec;
  page->open("header");
  page->element("p", {{"class", "kicker"}}, fmt::format("allot report \u00b7 run {}", spec.run_id()));
  page->element("h1", {},
                fmt::format("A sample schedule for {} on {}", spec.model().id(), spec.task().name()));
  write_verdict(page, run, evaluation);
  if (run.stage != "finished") {
    page->element("p", {{"class", "notice"}},
                  fmt::format("The run is not finished: it is in stage \u201c{}\u201d with {} of {} learning "
                              "episodes. All numbers are those so far.",
                              run.stage, run.episodes_learned(), run.episodes_wanted));
  }
  page->close();
}

void write_scores(Markup* page, const EvaluationRecord& evaluation) {
  const std::pair<const char*, const std::optional<evaluation::Accuracy>*> rows[] = {
      {"dense", &evaluation.dense}, {"learned", &evaluation.learned}, {"uniform", &evaluation.uniform}};
  page->open("section").open("table", {{"class", "scores"}}).open("thead").open("tr");
  for (const char* head : {"Schedule", "Right", "Accuracy", "95% interval"}) page->element("th", {}, head);
  page->close().close().open("tbody");
  for (const auto& [name, score] : rows) {
    if (!*score) continue;
    page->open("tr").element("th", {}, name);
    page->element("td", {}, fmt::format("{} of {}", (*score)->correct, (*score)->questions));
    page->element("td", {}, percent((*score)->value));
    page->element("td", {}, percent_range((*score)->interval.low, (*score)->interval.high)).close();
  }
  page->close().close();
  if (const auto& paired = evaluation.paired) {
    page->element("p", {{"class", "paired"}},
                  fmt::format("Question by question, {} are right only with the learned schedule and {} only "
                              "with the uniform one.",
                              paired->pairs.only_first, paired->pairs.only_second));
  }
  page->close();
}

void write_totals(Markup* page, const evaluation::Frontier& frontier, kernels::BudgetUnit unit) {
  page->open("section").open("table", {{"class", "scores totals"}}).open("thead").open("tr");
  const std::string total = fmt::format("Total, {}", kernels::name(unit));
  for (const char* head : {total.c_str(), "Uniform", "95% interval", "Learned", "95% interval", "Difference"})
    page->element("th", {}, head);
  page->close().close().open("tbody");
  for (const evaluation::FrontierPoint& point : frontier.points) {
    page->open("tr").element("th", {}, std::to_string(point.total));
    for (const evaluation::Accuracy* accuracy : {&point.uniform, &point.learned}) {
      page->element("td", {}, percent(accuracy->value));
      page->element("td", {}, percent_range(accuracy->interval.low, accuracy->interval.high));
    }
    page->element("td", {}, points(point.paired.difference)).close();
  }
  page->close().close();
  if (const auto equal = evaluation::equal_even(frontier))
    page->element("p", {{"class", "paired"}},
                  "Measured so far, " + evaluation::text(*equal, kernels::name(unit)) + ".");
  page->close();
}

// Whole replies, folded.
void write_lost_replies(Markup* page, const evaluation::Frontier& frontier) {
  if (frontier.lost.empty()) return;
  page->open("section", {{"class", "lost-replies"}}).element("h2", {}, "Replies that are lost");
  for (const evaluation::LostReplies& lost : frontier.lost) {
    page->open("details").element("summary", {}, fmt::format("Question {}", lost.question));
    page->element("h3", {}, "Dense attention, right").element("pre", {}, lost.dense);
    page->element("h3", {}, "Learned schedule, wrong").element("pre", {}, lost.learned).close();
  }
  page->element(
      "p", {{"class", "paired"}},
      "From the measurement of the totals above, which drew anew: a question that was lost in the run\u2019s "
      "own verification need not be lost here.");
  page->close();
}

void write_figure(Markup* page, const Figure& figure) {
  page->open("figure", {{"class", figure.name}});
  page->element("h2", {}, figure.title);
  page->open("div", {{"class", "wide"}}).insert(figure.wide).close();
  page->open("div", {{"class", "narrow"}}).insert(figure.narrow).close();
  page->element("figcaption", {}, figure.caption);
  page->close();
}

void write_facts(Markup* page, const std::vector<Fact>& facts) {
  page->open("table", {{"class", "facts"}}).open("tbody");
  for (const Fact& fact : facts) {
    page->open("tr").element("th", {}, fact.name).open("td").text(fact.text);
    if (!fact.code.empty()) page->element("code", {}, fact.code);
    page->close().close();
  }
  page->close().close();
}

std::string dataset(const wire::DatasetIdentity& data) {
  std::string text = fmt::format("{}, {} questions", data.path(), data.questions());
  if (data.has_question_field()) text += fmt::format(", question in field {}", data.question_field());
  if (data.has_answer_field()) text += fmt::format(", answer in field {}", data.answer_field());
  return text.append(", SHA-256");
}

// Works for a learner that this release does not have, too.
std::string learner(const wire::RunSpec& spec) {
  const policy::PolicyConfig config = aggregator::policy_config(spec);
  const policy::Learner* declared = policy::find_learner(config.name);
  std::string text = config.name;
  if (declared != nullptr) text += fmt::format(" ({})", declared->summary);
  std::string separator = ": ";
  for (const auto& [name, value] : config.parameters) {
    const policy::Parameter* parameter = declared == nullptr ? nullptr : declared->find(name);
    text += fmt::format("{}{} {}", separator, parameter ? policy::option_name(*parameter) : name, value);
    separator = ", ";
  }
  if (!config.start.samples.empty()) text += "; from the schedule " + config.start.to_string();
  return text;
}

Fact verified_on(const wire::TaskSpec& task) {
  if (task.heldout_questions() == 0) return {"Verified on", "no verification was asked for"};
  return {"Verified on", fmt::format("the first {} of {}", task.heldout_questions(), dataset(task.heldout())),
          task.heldout().sha256()};
}

// ", bounds 3:4 (changed by control; none at first)"; empty where there never were any.
std::string bounds_text(const aggregator::RunData& run) {
  const std::string& first = run.spec.policy().bounds();
  const auto shown = [](const std::string& bounds) { return bounds.empty() ? std::string("none") : bounds; };
  if (run.bounds == first) return first.empty() ? "" : ", bounds " + first;
  return fmt::format(", bounds {} (changed by control; {} at first)", shown(run.bounds), shown(first));
}

Fact adapter_fact(const wire::ModelIdentity& model) {
  if (!model.has_adapter()) return {"Adapter", "none"};
  return {"Adapter", fmt::format("{}, merged into the weights; fingerprint", model.adapter().id()),
          model.adapter().fingerprint()};
}

// What the ablation of the report asked; everything else is as in the run.
std::vector<Fact> ablation_facts(const evaluation::Ablation& ablation) {
  const auto& measured_on = ablation.conditions.measured_on;
  if (!measured_on) return {};
  return {{"Layers measured on",
           fmt::format("{} questions of the data file with this SHA-256, seed {}", measured_on->questions,
                       ablation.conditions.seed),
           measured_on->sha256}};
}

std::string reward(const aggregator::RunData& run) {
  const RewardKindRow& kind = row_of(run.kind);
  const int64_t first = run.spec.divergence_episodes();
  const uint32_t questions = run.spec.divergence_questions();
  const std::string of = questions == 0 ? "" : fmt::format(" of {} questions", questions);
  return first == 0 ? std::string(kind.of_run)
                    : fmt::format("divergences{} in the first {} episodes, {} after", of, first, kind.of_run);
}

std::vector<Fact> conditions(const aggregator::RunData& run, const std::string& tool_version) {
  const wire::RunSpec& spec = run.spec;
  const evaluation::Conditions settings = worker::conditions_of(spec);
  const wire::ModelIdentity& model = spec.model();
  const wire::TaskSpec& task = spec.task();
  return {
      {"Model", fmt::format("{}: {} layers, {} query and {} KV heads of {}", model.id(), model.layers(),
                            model.num_q_heads(), model.num_kv_heads(), model.head_dim())},
      {"Model config", "SHA-256", model.config_sha256()},
      {"Tokenizer", "SHA-256", model.tokenizer_sha256()},
      {"Weights fingerprint", "SHA-256", model.weights_fingerprint()},
      adapter_fact(model),
      {"Task",
       fmt::format("{} version {}, prompt style {}", task.name(), task.version(), task.prompt_style())},
      {"Learned on", dataset(task.train()), task.train().sha256()},
      verified_on(task),
      {"Attention", kernels::describe(settings.attention)},
      {"Generation", evaluation::describe(settings.generation)},
      {"Budget", fmt::format("{} in all, at least {} per layer{}", total_text(spec), spec.policy().floor(),
                             bounds_text(run))},
      {"Learned schedule", fmt::format("{} of layer 0, 1, …", kernels::name(settings.attention.unit)),
       layers_text(run.recommended)},
      {"Policy", fmt::format("{}; {} updates made", learner(spec), run.policy_version)},
      {"Reward", reward(run)},
      {"Episodes", fmt::format("{} of {}, {} questions each", run.episodes_learned(), run.episodes_wanted,
                               spec.questions_per_episode())},
      {"Seed", fmt::format("{}", spec.seed())},
      {"Time spent", duration_text(run.elapsed_s)},
      {"Tool", fmt::format("allot {}", tool_version)},
  };
}

// One line a finding; nothing where the run has no preflight.
void write_preflight(Markup* page, const aggregator::RunData& run) {
  if (!run.preflight) return;
  const std::vector<std::string> lines = preflight_lines(*run.preflight, 0);
  if (lines.empty()) return;
  page->open("section", {{"class", "preflight"}}).element("h2", {}, "Before learning");
  page->element("p", {},
                fmt::format("Dense attention and the even schedule on {} training questions:",
                            run.preflight->wanted()));
  page->open("ul");
  for (const std::string& line : lines) page->element("li", {}, line);
  page->close().close();
}

void open_rows(Markup* page, const char* title, const char* kind, std::initializer_list<const char*> heads) {
  page->open("section").element("h2", {}, title).open("table", {{"class", kind}});
  page->open("thead").open("tr");
  for (const char* head : heads) page->element("th", {}, head);
  page->close().close().open("tbody");
}

void write_verdict_sentences(Markup* page, const Verdict& verdict) {
  page->open("section", {{"class", "learning"}}).element("h2", {}, "Was it over?");
  if (!verdict.no_update.empty()) page->element("p", {}, verdict.no_update);
  page->element("p", {}, verdict.learning);
  if (verdict.to_dense) {
    const evaluation::PairedTest& test = *verdict.to_dense;
    page->element(
        "p", {},
        fmt::format("Against dense attention the learned schedule has {} on the held-out questions.",
                    points_with_range(test.difference, test.interval.low, test.interval.high)));
  }
  if (!verdict.replies_of.empty()) {
    page->open("ul");
    for (const ReplyCounts& replies : verdict.replies_of) page->element("li", {}, text(replies));
    page->close();
  }
  page->close();
}

// The history keeps no replies, only what became of them.
void write_lost(Markup* page, const Verdict& verdict, const std::string& heldout) {
  if (verdict.lost == 0) return;
  open_rows(page, "Questions that are lost", "lost", {"Question", "Dense attention", "Learned schedule"});
  for (const LostQuestion& lost : verdict.lost_questions) {
    page->open("tr").element("td", {}, std::to_string(lost.question));
    page->element("td", {}, reply_text(lost.dense)).element("td", {}, reply_text(lost.learned)).close();
  }
  page->close().close();
  page->element(
      "p", {{"class", "paired"}},
      fmt::format("{} held-out questions are right with dense attention and not with the learned schedule; "
                  "the numbers count the questions of {} from 0{}.",
                  verdict.lost, heldout,
                  verdict.lost > std::ssize(verdict.lost_questions)
                      ? fmt::format(", and the first {} are listed", verdict.lost_questions.size())
                      : ""));
  page->close();
}

std::string bytes_text(int64_t bytes) {
  constexpr double kMebi = 1024.0 * 1024.0;
  return fmt::format("{:.{}f}\u00a0MiB", static_cast<double>(bytes) / kMebi, bytes < 10 * kMebi ? 2 : 0);
}

void write_step_times(Markup* page, const evaluation::StepTimes& times) {
  page->open("section", {{"class", "step-times"}}).element("h2", {}, "Time of a decode step");
  page->open("table", {{"class", "scores rows"}}).open("thead").open("tr");
  for (const char* head : {"Context", "Dense", "Learned", "Saved"}) page->element("th", {}, head);
  page->close().close().open("tbody");
  for (const evaluation::ContextTimes& one : times.contexts) {
    const auto cell = [&](const evaluation::StepTime& time) {
      page->element("td",
                    {{"title", fmt::format("5 to 95 %: {:.0f} to {:.0f} \u00b5s", time.low, time.high)}},
                    fmt::format("{:.0f} \u00b5s", time.median));
    };
    page->open("tr").element("th", {}, context_text(one.context));
    cell(one.dense);
    cell(one.schedule);
    const double saved = one.dense.median - one.schedule.median;
    page->element("td", {}, fmt::format("{:.0f} \u00b5s, {:.1f}%", saved, 100 * saved / one.dense.median))
        .close();
  }
  page->close().close();
  page->element(
      "p", {{"class", "paired"}},
      fmt::format("Measured by \u201callot bench schedule\u201d on {}, {} sequences together, random "
                  "weights and cache; medians of {} steps.",
                  times.device, times.sequences, times.steps));
  page->close();
}

void write_rows_read(Markup* page, const Verdict& verdict, bool timed) {
  if (verdict.rows.empty()) return;
  page->open("section", {{"class", "rows-read"}}).element("h2", {}, "Value rows read for a token");
  page->open("table", {{"class", "scores rows"}}).open("thead").open("tr");
  for (const char* head : {"Context", "Dense", "Learned, at most", "Dense", "Learned, at most"})
    page->element("th", {}, head);
  page->close().close().open("tbody");
  for (const RowsRead& row : verdict.rows) {
    page->open("tr").element("th", {}, fmt::format("{}k", row.context / 1024));
    page->element("td", {}, std::to_string(row.dense)).element("td", {}, std::to_string(row.learned));
    page->element("td", {}, bytes_text(row.dense_bytes))
        .element("td", {}, bytes_text(row.learned_bytes))
        .close();
  }
  page->close().close();
  page->element(
      "p", {{"class", "paired"}},
      "Counted from the schedule and the model\u2019s shape, over all layers and KV heads, as if no two query "
      "heads of a group drew the same row. All keys are read in either case." +
          std::string(timed ? "" : " No time was measured; \u201callot bench schedule --run\u201d does."));
  page->close();
}

struct Counter {
  const char* name;
  int64_t count;
  const char* meaning;
};

void write_counters(Markup* page, const aggregator::RunData& run) {
  const wire::Counters& counters = run.counters;
  const Counter rows[] = {
      {"granted", counters.granted(), "leases handed to workers"},
      {"accepted", counters.accepted(), "results that count"},
      {"expired", counters.expired(),
       "leases that no worker renewed in time; their episodes were offered again"},
      {"released", counters.released(), "leases that a worker gave back when it was stopped"},
      {"late", counters.late(), "results that came after their lease had expired, and were used"},
      {"duplicate", counters.duplicate(), "results that had been answered before"},
      {"stale", counters.stale(), "results too old to learn from"},
      {"failed", counters.failed(), "episodes that a worker could not run"},
      {"rejected", counters.rejected(), "results that did not fit their lease"},
      {"malformed", counters.malformed(), "messages that could not be read"},
      {"given up", counters.set_aside(), "episodes without an attempt left"},
      {"preempted", counters.preempted(), "of the released leases, those of a machine that was taken away"},
      {"timed out", counters.timed_out(), "of the expired leases, those that reached their deadline"},
      {"crashed", counters.crashed(), "leases whose worker broke"},
      {"poisoned", counters.poisoned(), "of the episodes given up, those that failed on different workers"},
      {"answers kept", counters.answers_kept(), "questions that a leaving worker had answered"},
  };
  page->open("table", {{"class", "counters"}}).open("tbody");
  for (const Counter& row : rows) {
    page->open("tr").element("th", {}, row.name).element("td", {}, std::to_string(row.count));
    page->element("td", {}, row.meaning).close();
  }
  page->close().close();
  if (run.spec.cross_check() > 0)
    page->element("p", {{"class", "paired"}},
                  "Cross-checked grades: " + cross_check_text(run.checks.describe()) + ".");
}

// What operators asked for, and what came to nothing; neither section is there without such an event.
void write_events(Markup* page, const aggregator::RunData& run) {
  if (!run.controls.empty()) {
    open_rows(page, "Control", "events", {"When", "Who", "What"});
    for (const aggregator::RunControlled& controlled : run.controls) {
      page->open("tr").element("td", {}, utc_text(controlled.at)).element("td", {}, controlled.by);
      page->element("td", {}, control_text(aggregator::to_wire(controlled))).close();
    }
    page->close().close().close();
  }
  if (run.given_up.empty()) return;
  const size_t before = run.given_up.size() - std::min(run.given_up.size(), kGivenUpListed);
  open_rows(page, "Episodes given up", "events", {"When", "Episode", "Why"});
  for (const aggregator::EpisodeGivenUp& given_up : std::span(run.given_up).subspan(before)) {
    page->open("tr").element("td", {}, utc_text(given_up.at));
    page->element("td", {}, std::to_string(given_up.episode.value));
    std::string why = given_up.reason.empty() ? "its attempts were used up" : given_up.reason;
    if (given_up.kind == aggregator::GiveUp::kPoisoned) why = "failed on different workers: " + why;
    page->element("td", {}, why).close();
  }
  page->close().close();
  if (before > 0) {
    page->element(
        "p", {{"class", "paired"}},
        fmt::format("{} more were given up before these; \u201callot history export\u201d lists all.",
                    before));
  }
  page->close();
}

}  // namespace

std::string report_page(const ReportInput& input) {
  const aggregator::RunData& run = input.run;
  const EvaluationRecord evaluation = evaluate(run);
  const Verdict verdict = verdict_of(run, input.directory.string());
  Markup page;
  page.open("html", {{"lang", "en"}}).open("head");
  page.empty("meta", {{"charset", "utf-8"}});
  page.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  page.element("title", {}, fmt::format("allot: {} on {}", run.spec.model().id(), run.spec.task().name()));
  page.open("style").insert(chart_style()).insert(kPageStyle).close();
  page.close().open("body");
  write_header(&page, run, evaluation);
  page.open("main");
  for (const Figure& figure : make_figures(input, evaluation)) {
    write_figure(&page, figure);
    if (figure.name == "accuracy") write_scores(&page, evaluation);
    if (figure.name == "frontier") write_totals(&page, *input.frontier, unit_of(run.spec));
  }
  write_preflight(&page, run);
  if (!stopped_by_preflight(run)) {
    write_verdict_sentences(&page, verdict);
    write_lost(&page, verdict, run.spec.task().heldout().path());
    if (input.frontier) write_lost_replies(&page, *input.frontier);
    write_rows_read(&page, verdict, input.step_times.has_value());
    if (input.step_times) write_step_times(&page, *input.step_times);
  }
  page.open("section").element("h2", {}, "Conditions");
  std::vector<Fact> facts = conditions(run, input.tool_version);
  facts.push_back({"To run it again", "", verdict.command});
  if (input.ablation) std::ranges::move(ablation_facts(*input.ablation), std::back_inserter(facts));
  write_facts(&page, facts);
  page.close();
  page.open("section").element("h2", {}, "Leases");
  write_counters(&page, run);
  page.close();
  write_events(&page, run);
  page.close();  // main
  page.open("footer").element("p", {}, fmt::format("Written by allot {}.", input.tool_version)).close();
  page.close().close();
  return "<!DOCTYPE html>\n" + page.str();
}

}  // namespace allot::app
