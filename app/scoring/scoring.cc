#include "app/scoring/scoring.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "app/cli/stop_signal.h"
#include "app/scoring/reply_engine.h"
#include "app/view/progress_line.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/grader_process.h"
#include "evaluation/json_fields.h"
#include "worker/engine_generator.h"
#include "worker/model_runner.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

std::string detail_line(const std::string& schedule, const evaluation::Question& question,
                        const evaluation::Reply& reply, const evaluation::Grade& grade) {
  const Json row = {{"schedule", schedule},         {"question", question.id},
                    {"gold", question.answer},      {"answer", grade.answer ? Json(*grade.answer) : Json()},
                    {"extracted", grade.extracted}, {"correct", grade.score == 1},
                    {"score", grade.score},         {"output_tokens", reply.output_tokens},
                    {"reply", reply.text}};
  // A reply may end within a character.
  return row.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

struct Scorer::Impl {
  // By schedule and question, so that the order is not that of the answers' arrival.
  using Lines = std::map<std::pair<size_t, uint32_t>, std::string>;

  Impl(const ScoringPlan& plan, const model::EngineOptions& options);
  void keep(const Episode& episode, size_t place, const evaluation::Reply& reply,
            const evaluation::Grade& grade);

  const ScoringPlan& plan;
  const SystemClock clock;
  model::Engine* engine = nullptr;  // of the runner's generator
  std::optional<worker::ModelRunner> runner;
  std::span<const NamedSchedule> schedules;  // being scored
  size_t scored = 0;                         // before these
  Lines details;
  Lines replies;  // of the schedules being scored
};

Scorer::Impl::Impl(const ScoringPlan& plan_, const model::EngineOptions& options) : plan(plan_) {
  auto task = evaluation::make_graded_task(
      {plan.conditions.task.name, plan.conditions.task.prompt_style, std::string(plan.task->definition())},
      evaluation::make_grader(plan.options.grader));
  auto generator = std::make_unique<worker::EngineGenerator>(
      plan.options.model, options, generation_limits(plan.conditions.generation),
      prompt_form(plan.conditions), /*system=*/"", worker::expected_texts(*task, plan.dataset.questions));
  engine = &generator->engine();
  runner.emplace(std::move(generator), std::move(task),
                 worker::Questions{.train = plan.dataset.questions, .heldout = {}},
                 worker::ModelRunnerOptions{
                     .run_seed = plan.conditions.seed,
                     .questions_per_episode = static_cast<int32_t>(worker::kQuestionsPerScoringEpisode)},
                 clock);
  if (!plan.options.details.empty() || plan.keep_replies)
    runner->observe([this](const Episode& episode, size_t place, const evaluation::Reply& reply,
                           const evaluation::Grade& grade) { keep(episode, place, reply, grade); });
}

void Scorer::Impl::keep(const Episode& episode, size_t place, const evaluation::Reply& reply,
                        const evaluation::Grade& grade) {
  const size_t schedule = worker::scored_schedule(episode.id, plan.questions());
  const evaluation::Question& question = plan.dataset.questions[episode.questions[place]];
  if (plan.keep_replies) replies[{schedule, question.id}] = reply.text;
  if (!plan.options.details.empty())
    details[{scored + schedule, question.id}] =
        detail_line(schedules[schedule].label, question, reply, grade);
}

Scorer::Scorer(const ScoringPlan& plan, const model::EngineOptions& options)
    : impl_(std::make_unique<Impl>(plan, options)) {}
Scorer::~Scorer() = default;

std::vector<Score> Scorer::score(std::span<const NamedSchedule> schedules) {
  const auto& stop = watch_stop_signals();
  ProgressLine line("answers");
  impl_->schedules = schedules;
  std::vector<std::vector<int32_t>> samples;
  for (const NamedSchedule& schedule : schedules)
    samples.push_back(schedule.schedule ? schedule.schedule->samples : std::vector<int32_t>{});
  std::vector<worker::ScheduleScore> answers = worker::score_schedules(
      &*impl_->runner, samples, impl_->plan.questions(),
      {.progress = [&](int64_t answered, int64_t wanted) { line.update(answered, wanted); },
       .stop_asked = [&] { return stop.load(); }});
  std::vector<Score> scores;
  for (size_t i = 0; i < schedules.size(); ++i) scores.push_back({schedules[i], std::move(answers[i])});
  for (auto& [at, text] : impl_->replies) scores[at.first].replies.push_back(std::move(text));
  impl_->replies.clear();
  impl_->scored += schedules.size();
  return scores;
}

std::string Scorer::details() const {
  std::string text;
  for (const auto& [at, row] : impl_->details) text += row;
  return text;
}

model::Engine& Scorer::engine() {
  return *impl_->engine;
}

Scores score(const ScoringPlan& plan, const NextSchedules& next) {
  Scorer scorer(plan, engine_options(plan.options, plan.conditions));
  const SystemClock clock;
  const Timestamp start = clock.now();
  Scores scores;
  std::vector<NamedSchedule> schedules = plan.schedules;  // of this round
  do {
    std::ranges::move(scorer.score(schedules), std::back_inserter(scores.schedules));
    schedules = next ? next(scores.schedules) : std::vector<NamedSchedule>();
  } while (!schedules.empty());
  scores.seconds = std::chrono::duration<double>(clock.now() - start).count();
  write_executed(plan, plan.options, scorer.engine());
  if (!plan.options.details.empty()) write_file_atomically(plan.options.details, scorer.details());
  return scores;
}

Json score_json(const Score& score) {
  Json json = {{"schedule", score.schedule.label}};
  const auto& schedule = score.schedule.schedule;
  json["samples"] = schedule ? evaluation::samples_json(schedule->samples) : Json();
  json["total"] = schedule ? Json(schedule->total()) : Json();
  json["exact_layers"] = schedule ? Json(exact_layers(schedule->samples)) : Json();
  json.update(evaluation::to_json(evaluation::accuracy_of(score.answers.scores)));
  json["standard_error"] = evaluation::standard_error(score.answers.scores);
  json["prompt_tokens"] = score.answers.prompt_tokens;
  json["output_tokens"] = score.answers.output_tokens;
  json["cut_off"] = score.answers.cut_off;
  return json;
}

std::string format_test(const evaluation::PairedTest& test) {
  return fmt::format("{} ({} questions {} here, {} there)", evaluation::text(test), test.pairs.only_first,
                     test.graded ? "higher" : "right only", test.pairs.only_second);
}

}  // namespace allot::app
