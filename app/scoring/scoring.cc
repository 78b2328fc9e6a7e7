#include "app/scoring/scoring.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "app/cli/stop_signal.h"
#include "app/scoring/leased_answers.h"
#include "app/scoring/lm_eval_files.h"
#include "app/scoring/prompt_lengths.h"
#include "app/view/progress_line.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/answers.h"
#include "evaluation/grader_process.h"
#include "evaluation/json_fields.h"
#include "worker/model_runner.h"
#include "worker/schedule_score.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

// "uniform:8, repeat 2" for messages.
std::string name_of(const NamedSchedule& schedule, uint32_t repeat, int32_t repeats) {
  return repeats == 1 ? schedule.label : fmt::format("{}, repeat {}", schedule.label, repeat + 1);
}

}  // namespace

struct Scorer::Impl {
  // A schedule in the order of scoring, repeat and question, so that the order is not that of the answers'
  // arrival. Labels need not differ.
  using Place = std::tuple<size_t, uint32_t, uint32_t>;

  void load();
  void keep(const Episode& episode, size_t place, const evaluation::Reply& reply,
            const evaluation::Grade& grade);
  const evaluation::Answer* known(const evaluation::AnswerKey& key) const;  // null where it is to be asked
  std::vector<int32_t> samples_of(const NamedSchedule& named, uint32_t question);
  Score collect(size_t schedule, const NamedSchedule& named) const;

  const ScoringPlan& plan;
  ModelHere* const model;
  EvaluationRun* const run;
  const SystemClock clock = {};
  std::optional<worker::ModelRunner> runner = {};
  std::span<const NamedSchedule> schedules = {};  // being scored
  std::vector<worker::Sitting> sittings = {};     // a repeat of a schedule each, or of a band of one
  // Schedule and repeat of each sitting.
  std::vector<std::pair<size_t, uint32_t>> sat_for = {};
  std::vector<int64_t> lengths = {};  // of the questions' prompts, where a schedule has bands
  int64_t answered_before = 0;
  size_t scored = 0;  // schedules before these
  std::map<Place, evaluation::Answer> answers = {};

  uint32_t repeats() const { return static_cast<uint32_t>(plan.options.repeats); }
};

void Scorer::Impl::load() {
  if (runner) return;
  auto task = evaluation::make_graded_task(
      {plan.conditions.task.name, plan.conditions.task.prompt_style, std::string(plan.task->definition())},
      evaluation::make_grader(plan.options.grader));
  auto generator = model->load(plan, *task);
  runner.emplace(std::move(generator), std::move(task),
                 worker::Questions{.train = plan.dataset.questions, .heldout = {}},
                 worker::ModelRunnerOptions{
                     .run_seed = plan.conditions.seed,
                     .questions_per_episode = static_cast<int32_t>(worker::kQuestionsPerScoringEpisode)},
                 clock);
  runner->observe([this](const Episode& episode, size_t place, const evaluation::Reply& reply,
                         const evaluation::Grade& grade) { keep(episode, place, reply, grade); });
}

void Scorer::Impl::keep(const Episode& episode, size_t place, const evaluation::Reply& reply,
                        const evaluation::Grade& grade) {
  const size_t sitting = worker::scored_sitting(episode.id, sittings);
  const auto [schedule, repeat] = sat_for[sitting];
  const evaluation::Question& question = plan.dataset.questions[episode.questions[place]];
  evaluation::Answer answer{.key = {schedules[schedule].label, repeat, question.id},
                            .gold = question.answer,
                            .answer = grade.answer,
                            .extracted = grade.extracted,
                            .score = grade.score,
                            .prompt_tokens = reply.prompt_tokens,
                            .output_tokens = reply.output_tokens,
                            .finish = reply.finish,
                            .reply = reply.text};
  if (run != nullptr) run->add(answer);
  answers.insert_or_assign({scored + schedule, repeat, question.id}, std::move(answer));
}

const evaluation::Answer* Scorer::Impl::known(const evaluation::AnswerKey& key) const {
  if (run == nullptr) return nullptr;
  const auto found = run->answers().find(key);
  return found == run->answers().end() ? nullptr : &found->second;
}

std::vector<int32_t> Scorer::Impl::samples_of(const NamedSchedule& named, uint32_t question) {
  if (!named.has_bands()) return named.samples_of_prompt(0);
  if (lengths.empty())
    lengths = prompt_lengths(plan.options.model, *plan.task, plan.conditions.task.prompt_style,
                             plan.conditions.generation.max_new_tokens,
                             std::span(plan.dataset.questions).first(plan.questions()));
  return named.samples_of_prompt(lengths[question]);
}

// `schedule` is its place in the order of scoring.
Score Scorer::Impl::collect(size_t schedule, const NamedSchedule& named) const {
  Score score{.schedule = named, .scores = std::vector<double>(plan.questions())};
  if (repeats() > 1) score.repeats.assign(repeats(), std::vector<double>(plan.questions()));
  if (plan.keep_replies) score.replies.resize(plan.questions());
  for (auto at = answers.lower_bound({schedule, 0, 0});
       at != answers.end() && std::get<0>(at->first) == schedule; ++at) {
    const evaluation::Answer& answer = at->second;
    const uint32_t repeat = answer.key.repeat, question = answer.key.question;
    score.scores[question] += answer.score;
    if (repeats() > 1) score.repeats[repeat][question] = answer.score;
    score.prompt_tokens += answer.prompt_tokens;
    score.output_tokens += answer.output_tokens;
    score.cut_off += answer.finish == Finish::kLength;
    ++score.answers;
    if (plan.keep_replies && repeat == 0) score.replies[question] = answer.reply;
  }
  for (double& one : score.scores) one /= plan.options.repeats;
  return score;
}

Scorer::Scorer(const ScoringPlan& plan, ModelHere* model, EvaluationRun* run)
    : impl_(new Impl{.plan = plan, .model = model, .run = run}) {}
Scorer::~Scorer() = default;

std::vector<Score> Scorer::score(std::span<const NamedSchedule> schedules) {
  Impl& impl = *impl_;
  impl.schedules = schedules;
  impl.sittings.clear();
  impl.sat_for.clear();
  for (size_t schedule = 0; schedule < schedules.size(); ++schedule) {
    const NamedSchedule& named = schedules[schedule];
    for (uint32_t repeat = 0; repeat < impl.repeats(); ++repeat) {
      std::map<std::vector<int32_t>, size_t> of_samples;  // a sitting each
      for (uint32_t question = 0; question < impl.plan.questions(); ++question) {
        const evaluation::AnswerKey key{named.label, repeat, question};
        if (const evaluation::Answer* known = impl.known(key)) {
          impl.answers.insert_or_assign({impl.scored + schedule, repeat, question}, *known);
          ++impl.answered_before;
        } else {
          const std::vector<int32_t> samples = impl.samples_of(named, question);
          const auto [sitting, added] = of_samples.try_emplace(samples, impl.sittings.size());
          if (added) {
            impl.sittings.push_back({.label = name_of(named, repeat, impl.plan.options.repeats),
                                     .samples = samples,
                                     .questions = {},
                                     .sampling_seed = repeat});
            impl.sat_for.emplace_back(schedule, repeat);
          }
          impl.sittings[sitting->second].questions.push_back(question);
        }
      }
    }
  }
  if (!impl.sittings.empty()) {
    impl.load();
    const auto& stop = watch_stop_signals();
    ProgressLine line("answers");
    worker::score_sittings(
        &*impl.runner, impl.sittings,
        {.progress = [&](int64_t answered, int64_t wanted) { line.update(answered, wanted); },
         .stop_asked = [&] { return stop.load(); }});
  }
  std::vector<Score> scores;
  for (const NamedSchedule& schedule : schedules)
    scores.push_back(impl.collect(impl.scored + scores.size(), schedule));
  impl.scored += schedules.size();
  return scores;
}

std::string Scorer::details() const {
  std::string text;
  for (const auto& [at, answer] : impl_->answers) text += evaluation::format_answer(answer);
  return text;
}

std::vector<evaluation::Answer> Scorer::answers(size_t schedule) const {
  std::vector<evaluation::Answer> answers;
  const auto& all = impl_->answers;
  for (auto at = all.lower_bound({schedule, 0, 0}); at != all.end() && std::get<0>(at->first) == schedule;
       ++at)
    answers.push_back(at->second);
  return answers;
}

int64_t Scorer::answered_before() const {
  return impl_->answered_before;
}

void Scorer::load() {
  impl_->load();
}

namespace {

void require_answerer(const ScoringPlan& plan, const ModelHere* model) {
  if (model == nullptr && plan.options.leases.listen.bind.empty())
    throw UsageError("no model answers here; let workers answer, at the address of --bind ENDPOINT");
}

// Does what `answer` does, and says of an error when asked to stop where the answers are.
template <class Answer>
void answer_into(const std::filesystem::path& directory, const Answer& answer) {
  try {
    answer();
  } catch (const Error& error) {
    if (directory.empty() || !watch_stop_signals().load()) throw;
    throw Error(
        fmt::format("{}; they are in {}, and the same command goes on", error.what(), directory.string()));
  }
}

// The files that the plan's options want beside the result.
void write_files(const ScoringPlan& plan, const Scorer& scorer, std::span<const Score> schedules) {
  if (!plan.options.details.empty()) write_file_atomically(plan.options.details, scorer.details());
  if (plan.options.lm_eval.empty()) return;
  for (size_t i = 0; i < schedules.size(); ++i)
    write_lm_eval_files(plan.options.lm_eval, plan, schedules[i], scorer.answers(i));
}

}  // namespace

Scores score(const ScoringPlan& plan, ModelHere* model, const NextSchedules& next) {
  require_answerer(plan, model);
  std::optional<EvaluationRun> run;
  Scores scores;
  if (!plan.options.run.empty()) {
    run.emplace(plan.options.run, plan, plan.options.regrade);
  }
  Scorer scorer(plan, model, run ? &*run : nullptr);
  const SystemClock clock;
  const Timestamp start = clock.now();
  std::vector<NamedSchedule> schedules = plan.schedules;  // of this round
  int64_t leased = 0;                                     // answers that workers gave
  do {
    answer_into(plan.options.run, [&] {
      // Then there is nothing left to ask the model here, which is not loaded.
      if (!plan.options.leases.listen.bind.empty()) {
        const LeasedPlan asked{.plan = &plan, .schedules = schedules, .run = &*run};
        leased += answer_on_workers(std::span(&asked, 1), plan.options.run).front();
      }
      std::ranges::move(scorer.score(schedules), std::back_inserter(scores.schedules));
    });
    schedules = next ? next(scores.schedules) : std::vector<NamedSchedule>();
  } while (!schedules.empty());
  scores.answered_before = scorer.answered_before() - leased;
  scores.seconds = std::chrono::duration<double>(clock.now() - start).count();
  if (!plan.options.executed_out.empty()) {
    scorer.load();
    model->write_executed(plan);
  }
  write_files(plan, scorer, scores.schedules);
  return scores;
}

std::vector<Scores> score_suite(std::span<const ScoringPlan> plans, const std::filesystem::path& directory,
                                ModelHere* model) {
  require_answerer(plans.front(), model);
  const bool on_workers = !plans.front().options.leases.listen.bind.empty();
  std::deque<EvaluationRun> runs;
  std::vector<LeasedPlan> asked;
  for (const ScoringPlan& plan : plans) {
    if (plan.options.run.empty()) continue;
    runs.emplace_back(plan.options.run, plan, plan.options.regrade);
    asked.push_back({.plan = &plan, .schedules = plan.schedules, .run = &runs.back()});
  }
  std::vector<int64_t> leased(plans.size());
  if (on_workers) answer_into(directory, [&] { leased = answer_on_workers(asked, directory); });
  if (model != nullptr) model->expect(plans);
  std::vector<Scores> all;
  const SystemClock clock;
  for (size_t i = 0; i < plans.size(); ++i) {
    const Timestamp start = clock.now();
    Scorer scorer(plans[i], model, runs.empty() ? nullptr : &runs[i]);
    Scores& scores = all.emplace_back();
    answer_into(directory, [&] { scores.schedules = scorer.score(plans[i].schedules); });
    scores.answered_before = scorer.answered_before() - leased[i];
    scores.seconds = std::chrono::duration<double>(clock.now() - start).count();
    write_files(plans[i], scorer, scores.schedules);
  }
  return all;
}

double scored_tokens(const Score& score) {
  return score.answers == 0 ? 0
                            : static_cast<double>(score.prompt_tokens + score.output_tokens) /
                                  static_cast<double>(score.answers);
}

Json score_json(const Score& score) {
  Json json = {{"schedule", score.schedule.label}};
  const auto& schedule = score.schedule.schedule;
  json["samples"] = schedule ? evaluation::samples_json(schedule->samples) : Json();
  json["total"] = schedule ? Json(schedule->total()) : Json();
  if (score.schedule.has_bands()) json["bands"] = bands_json(score.schedule.file->bands);
  json["exact_layers"] = schedule ? Json(exact_layers(schedule->samples)) : Json();
  json.update(evaluation::to_json(evaluation::accuracy_of(score.scores)));
  json["standard_error"] = evaluation::standard_error(score.scores);
  json["prompt_tokens"] = score.prompt_tokens;
  json["output_tokens"] = score.output_tokens;
  json["scored_tokens"] = scored_tokens(score);
  json["cut_off"] = score.cut_off;
  std::vector<double> all = score.repeats.empty() ? score.scores : std::vector<double>();
  for (const std::vector<double>& repeat : score.repeats) {
    json["repeats"].push_back(evaluation::to_json(evaluation::accuracy_of(repeat)));
    all.insert(all.end(), repeat.begin(), repeat.end());
  }
  json["interval_95_of_all_replies"] = evaluation::to_json(evaluation::bootstrap_interval(all));
  return json;
}

std::string format_test(const evaluation::PairedTest& test) {
  return fmt::format("{} ({} questions {} here, {} there)", evaluation::text(test), test.pairs.only_first,
                     test.graded ? "higher" : "right only", test.pairs.only_second);
}

}  // namespace allot::app
