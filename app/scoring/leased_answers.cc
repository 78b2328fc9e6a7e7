#include "app/scoring/leased_answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/history_files.h"
#include "aggregator/history_mark.h"
#include "aggregator/run_directory.h"
#include "aggregator/service.h"
#include "app/cli/open_files.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/run/identity.h"
#include "app/run/run_spec_builder.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/log.h"
#include "wire/endpoint.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_method.h"

namespace allot::app {
namespace {

// As many questions as an episode of score() has, fewer where their replies could be too long for a message:
// a token is seldom more than 8 bytes, and a worker says so where a result does not fit
// (worker/connection.h).
uint32_t questions_per_episode(const ScoringPlan& plan) {
  constexpr int64_t kUsual = 16, kBytesOfToken = 8;
  const int64_t bytes = kBytesOfToken * std::max(plan.conditions.generation.max_new_tokens, 1);
  const int64_t fitting = static_cast<int64_t>(wire::kMaxRequestBytes) / 2 / bytes;
  return static_cast<uint32_t>(
      std::clamp<int64_t>(fitting, 1, std::min<int64_t>(kUsual, std::ssize(plan.dataset.questions))));
}

// Makes room for a history of `spec` where the directory has one of another: that says only who worked on
// what, and the answers are not in it.
void make_room(const std::filesystem::path& directory, const wire::RunSpec& spec) {
  const auto file = aggregator::spec_path(directory);
  if (!std::filesystem::exists(file)) return;
  const wire::RunSpec before = wire::read_spec(file);
  if (!before.has_evaluation())
    throw Mismatch(fmt::format("{} holds a run that learned, '{}'; keep the answers in another directory",
                               directory.string(), before.run_id()));
  const std::vector<std::string> differences = wire::differences(before, spec);
  if (differences.empty()) return;
  if (aggregator::is_locked(directory).value_or(true))
    throw Mismatch(fmt::format("{} is served by another process; stop it, or name another directory",
                               directory.string()));
  spdlog::info("the leases begin anew, since workers are told something else than before: {}",
               fmt::join(differences, "; "));
  const std::filesystem::path history = aggregator::history_path(directory);
  // The mark first: a start that finds it without its history is refused.
  std::filesystem::remove(aggregator::mark_path(history));
  for (const std::filesystem::path& one : aggregator::history_files(history)) std::filesystem::remove(one);
  std::filesystem::remove(file);
}

// The name of a schedule among those of all tasks.
std::string label_of(const ScoringPlan& plan, const NamedSchedule& named) {
  return plan.name.empty() ? named.label : fmt::format("{}: {}", plan.name, named.label);
}

// Where the answers to a schedule belong.
struct Place {
  size_t plan = 0;
  std::string schedule;  // its label in the plan
};

struct Leased {
  aggregator::EvaluationWork work;
  std::map<std::string, Place, std::less<>> places;  // by label in the work
  int64_t wanted = 0, answered = 0;
};

Leased leased_of(std::span<const LeasedPlan> plans) {
  Leased leased;
  for (size_t task = 0; task < plans.size(); ++task) {
    const ScoringPlan& plan = *plans[task].plan;
    const auto& answers = plans[task].run->answers();
    for (const NamedSchedule& named : plans[task].schedules) {
      const std::string label = label_of(plan, named);
      // One that is named twice is one schedule (evaluation_run.h).
      if (!leased.places.try_emplace(label, Place{task, named.label}).second) continue;
      aggregator::EvaluatedSchedule& one = leased.work.schedules.emplace_back();
      one.label = label;
      if (named.schedule) one.samples = named.schedule->samples;
      one.task = static_cast<uint32_t>(task);
      one.repeats = static_cast<uint32_t>(plan.options.repeats);
      one.questions = plan.questions();
      one.scores.reserve(size_t{one.repeats} * one.questions);
      for (uint32_t repeat = 0; repeat < one.repeats; ++repeat) {
        for (uint32_t question = 0; question < one.questions; ++question) {
          const auto known = answers.find({named.label, repeat, question});
          one.scores.push_back(known == answers.end() ? std::nullopt : std::optional(known->second.score));
          leased.answered += known != answers.end();
        }
      }
      leased.wanted += std::ssize(one.scores);
    }
  }
  return leased;
}

evaluation::Answer answer_of(const aggregator::GivenAnswer& given, const std::string& schedule,
                             const ScoringPlan& plan) {
  const QuestionResult& result = given.result;
  return {.key = {schedule, given.repeat, result.question},
          .gold = plan.dataset.questions.at(result.question).answer,
          .answer = given.text.answer,
          .extracted = !result.no_answer,
          .score = result.score,
          .prompt_tokens = result.prompt_tokens,
          .output_tokens = result.output_tokens,
          .finish = result.finish,
          .reply = given.text.reply};
}

std::string reasons(const wire::Status& status) {
  std::vector<std::string> all;
  for (const wire::GivenUp& one : status.given_up()) all.push_back(one.reason());
  return fmt::format("{}", fmt::join(all, "; "));
}

void set_task(const ScoringPlan& plan, wire::TaskSpec* task) {
  const evaluation::TaskIdentity& identity = plan.conditions.task;
  task->set_name(identity.name);
  task->set_version(identity.version);
  task->set_prompt_style(identity.prompt_style);
  if (const std::string_view definition = plan.task->definition(); !definition.empty())
    task->set_definition(std::string(definition));
  *task->mutable_train() = to_wire(plan.dataset);
}

}  // namespace

wire::RunSpec evaluation_spec(std::span<const LeasedPlan> plans) {
  const ScoringPlan& plan = *plans.front().plan;
  const ScoringOptions& options = plan.options;
  const evaluation::Conditions& conditions = plan.conditions;
  wire::RunSpec spec;
  spec.set_schema_version(wire::kSpecVersion);
  spec.set_run_id(new_run_id());
  *spec.mutable_model() = to_wire(conditions.model);
  spec.set_model_path(absolute_path(options.model).string());
  if (options.adapter)
    spec.mutable_model()->mutable_adapter()->set_path(absolute_path(*options.adapter).string());
  set_task(plan, spec.mutable_task());
  *spec.mutable_attention() = worker::attention_spec(conditions.attention);
  set_generation(conditions.generation, spec.mutable_generation());
  spec.set_seed(static_cast<uint32_t>(conditions.seed));
  spec.set_questions_per_episode(questions_per_episode(plan));
  spec.set_lease_ms(1000 * options.leases.lease_seconds);
  spec.set_max_attempts(options.leases.max_attempts);
  wire::EvaluationSpec& evaluation = *spec.mutable_evaluation();
  evaluation.set_device(options.device.substr(0, options.device.find(':')));
  for (const LeasedPlan& more : plans.subspan(1)) {
    wire::EvaluationTask& task = *evaluation.add_more();
    set_task(*more.plan, task.mutable_task());
    set_generation(more.plan->conditions.generation, task.mutable_generation());
    task.set_questions_per_episode(questions_per_episode(*more.plan));
  }
  return spec;
}

std::vector<int64_t> answer_on_workers(std::span<const LeasedPlan> plans,
                                       const std::filesystem::path& directory) {
  std::vector<int64_t> came(plans.size());
  Leased leased = leased_of(plans);
  const int64_t wanted = leased.wanted;
  int64_t answered = leased.answered;
  if (answered == wanted) return came;

  const wire::RunSpec spec = evaluation_spec(plans);
  make_room(directory, spec);
  const auto& stop = watch_stop_signals();
  raise_open_files();
  ProgressLine line("answers");
  aggregator::ServiceOptions options;
  options.run_directory = directory;
  options.build = version();
  options.exit_when_finished = true;
  listen(plans.front().plan->options.leases.listen, &options);
  options.work = std::move(leased.work);
  options.on_answers = [&](std::span<const aggregator::GivenAnswer> given) {
    std::set<size_t> added;
    for (const aggregator::GivenAnswer& one : given) {
      const Place& place = leased.places.at(one.schedule);
      plans[place.plan].run->add(answer_of(one, place.schedule, *plans[place.plan].plan));
      ++came[place.plan];
      added.insert(place.plan);
    }
    for (const size_t plan : added) plans[plan].run->sync();
    answered += std::ssize(given);
    line.update(std::min(answered, wanted), wanted);
  };
  std::optional<aggregator::Service> service;
  try {
    service.emplace(spec, std::move(options));
  } catch (const InvalidArgument& fault) {  // of the address, which is what the options say
    throw UsageError(fault.what());
  }
  service->run(stop);
  if (service->given_up_questions() > 0)
    throw Error(fmt::format(
        "{} of {} questions have no answer: {}; mend the cause, and the same command asks them again",
        service->given_up_questions(), wanted, reasons(service->status())));
  if (answered < wanted) throw Error(fmt::format("stopped after {} of {} answers", answered, wanted));
  return came;
}

}  // namespace allot::app
