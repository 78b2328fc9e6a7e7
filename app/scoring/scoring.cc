#include "app/scoring/scoring.h"

#include <spdlog/fmt/fmt.h>

#include <map>

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

Scores score(const ScoringPlan& plan, const NextSchedules& next) {
  const SystemClock clock;
  const uint32_t questions = plan.questions();
  std::vector<NamedSchedule> schedules = plan.schedules;  // of this round
  Scores scores;
  auto generator = std::make_unique<worker::EngineGenerator>(
      plan.options.model, engine_options(plan.options, plan.conditions),
      generation_limits(plan.conditions.generation), prompt_form(plan.conditions));
  const model::Engine& engine = generator->engine();
  worker::ModelRunner runner(
      std::move(generator),
      evaluation::make_graded_task({plan.conditions.task.name, plan.conditions.task.prompt_style,
                                    std::string(plan.task->definition())},
                                   evaluation::make_grader(plan.options.grader)),
      {.train = plan.dataset.questions, .heldout = {}},
      {.run_seed = plan.conditions.seed,
       .questions_per_episode = static_cast<int32_t>(worker::kQuestionsPerScoringEpisode)},
      clock);
  // By schedule and question, so that the file's order is not that of the answers' arrival.
  std::map<std::pair<size_t, uint32_t>, std::string> details, replies;
  if (!plan.options.details.empty() || plan.keep_replies)
    runner.observe([&](const Episode& episode, size_t place, const evaluation::Reply& reply,
                       const evaluation::Grade& grade) {
      const size_t schedule = worker::scored_schedule(episode.id, questions);
      const evaluation::Question& question = plan.dataset.questions[episode.questions[place]];
      const std::pair at = {scores.schedules.size() + schedule, question.id};
      if (plan.keep_replies) replies[at] = reply.text;
      if (!plan.options.details.empty())
        details[at] = detail_line(schedules[schedule].label, question, reply, grade);
    });

  const auto& stop = watch_stop_signals();
  const Timestamp start = clock.now();
  ProgressLine line("answers");
  do {
    std::vector<std::vector<int32_t>> samples;
    for (const NamedSchedule& schedule : schedules)
      samples.push_back(schedule.schedule ? schedule.schedule->samples : std::vector<int32_t>{});
    std::vector<worker::ScheduleScore> answers = worker::score_schedules(
        &runner, samples, questions,
        {.progress = [&](int64_t answered, int64_t wanted) { line.update(answered, wanted); },
         .stop_asked = [&] { return stop.load(); }});
    for (size_t i = 0; i < schedules.size(); ++i)
      scores.schedules.push_back({schedules[i], std::move(answers[i])});
    schedules = next ? next(scores.schedules) : std::vector<NamedSchedule>();
  } while (!schedules.empty());
  scores.seconds = std::chrono::duration<double>(clock.now() - start).count();

  for (auto& [at, text] : replies) scores.schedules[at.first].replies.push_back(std::move(text));
  write_executed(plan, plan.options, engine);
  if (!plan.options.details.empty()) {
    std::string text;
    for (const auto& [at, row] : details) text += row;
    write_file_atomically(plan.options.details, text);
  }
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
