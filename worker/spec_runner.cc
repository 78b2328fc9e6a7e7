#include "worker/spec_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "evaluation/grader_process.h"
#include "wire/messages.pb.h"
#include "worker/divergence_runner.h"
#include "worker/engine_divergence.h"
#include "worker/engine_generator.h"
#include "worker/model_runner.h"
#include "worker/spec_conditions.h"
#include "worker/spec_method.h"
#include "worker/turns_runner.h"

namespace allot::worker {

namespace {

// A task of a run with all that answering its questions takes.
struct RunTask {
  std::unique_ptr<evaluation::Task> task;
  Questions questions;
  GeneratorTask generator;
  ModelRunnerOptions options;
};

RunTask run_task(const wire::TaskSpec& spec, const wire::GenerationSpec& generation, uint32_t seed,
                 uint32_t questions_per_episode, const MachineOptions& machine) {
  RunTask run;
  run.task = evaluation::make_graded_task(task_source(spec), evaluation::make_grader(machine.grader));
  evaluation::require_grader(*run.task, machine.grader);
  run.questions.train = load(*run.task, spec.train()).questions;
  if (spec.heldout_questions() > 0) run.questions.heldout = load(*run.task, spec.heldout()).questions;
  run.generator.limits = {.sampling = {.temperature = generation.temperature(),
                                       .top_p = generation.top_p(),
                                       .repetition_penalty = generation.repetition_penalty()},
                          .max_new_tokens = generation.max_new_tokens(),
                          .middle_cut = run.task->middle_cut()};
  run.generator.form = evaluation::asks_by_message(spec.prompt_style()) ? model::PromptForm::kMessage
                                                                        : model::PromptForm::kText;
  run.generator.expected = expected_texts(*run.task, run.questions.train);
  std::ranges::move(expected_texts(*run.task, run.questions.heldout),
                    std::back_inserter(run.generator.expected));
  run.options = {.run_seed = seed, .questions_per_episode = static_cast<int32_t>(questions_per_episode)};
  return run;
}

}  // namespace

std::unique_ptr<EpisodeRunner> make_spec_runner(const wire::RunSpec& spec, const MachineOptions& machine,
                                                const Clock& clock) {
  model::EngineOptions engine;
  engine.dtype = kernels::parse_dtype(spec.generation().dtype());
  engine.weights = weight_storage(spec.generation());
  engine.keys = key_format(spec.generation());
  engine.attention = attention_method(spec.attention());
  if (spec.model().has_adapter()) engine.adapter = spec.model().adapter().path();
  engine.device = machine.device;
  engine.threads = machine.threads;
  engine.max_sequences = machine.max_sequences;

  std::vector<RunTask> tasks;
  tasks.push_back(
      run_task(spec.task(), spec.generation(), spec.seed(), spec.questions_per_episode(), machine));
  for (const wire::EvaluationTask& more : spec.evaluation().more())
    tasks.push_back(
        run_task(more.task(), more.generation(), spec.seed(), more.questions_per_episode(), machine));
  std::vector<GeneratorTask> of_tasks;
  for (RunTask& one : tasks) of_tasks.push_back(std::move(one.generator));
  auto generators = EngineGenerator::for_tasks(spec.model_path(), engine, of_tasks);
  EngineGenerator* const first_generator = generators.front().get();
  std::vector<std::unique_ptr<ModelRunner>> answers;
  for (size_t i = 0; i < tasks.size(); ++i)
    answers.push_back(std::make_unique<ModelRunner>(std::move(generators[i]), std::move(tasks[i].task),
                                                    std::move(tasks[i].questions), tasks[i].options, clock));
  if (answers.size() > 1)  // an evaluation, which measures no divergences
    return make_tasks_runner(
        {std::make_move_iterator(answers.begin()), std::make_move_iterator(answers.end())});
  auto meter = std::make_unique<EngineDivergence>(first_generator);
  FindQuestion question = [of = answers.front().get()](Split split,
                                                       uint32_t id) -> const evaluation::Question& {
    return of->question(split, id);
  };
  auto divergences =
      std::make_unique<DivergenceRunner>(std::move(meter), evaluation::make_task(task_source(spec.task())),
                                         std::move(question), spec.seed(), clock);
  const RewardKind first =
      spec.divergence_episodes() > 0 ? RewardKind::kDivergence : parse_reward_kind(spec.reward_kind());
  return make_kinds_runner(std::move(answers.front()), std::move(divergences), first);
}

}  // namespace allot::worker
