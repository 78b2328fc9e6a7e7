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
#include "worker/kinds_runner.h"
#include "worker/model_runner.h"
#include "worker/spec_conditions.h"
#include "worker/spec_method.h"

namespace allot::worker {

std::unique_ptr<EpisodeRunner> make_spec_runner(const wire::RunSpec& spec, const MachineOptions& machine,
                                                const Clock& clock) {
  auto task = evaluation::make_graded_task(task_source(spec.task()), evaluation::make_grader(machine.grader));
  evaluation::require_grader(*task, machine.grader);
  Questions questions;
  questions.train = load(*task, spec.task().train()).questions;
  if (spec.task().heldout_questions() > 0) questions.heldout = load(*task, spec.task().heldout()).questions;

  model::EngineOptions engine;
  engine.dtype = kernels::parse_dtype(spec.generation().dtype());
  engine.attention = attention_method(spec.attention());
  if (spec.model().has_adapter()) engine.adapter = spec.model().adapter().path();
  engine.device = machine.device;
  engine.threads = machine.threads;
  engine.max_sequences = machine.max_sequences;

  const GenerationLimits limits{.sampling = {.temperature = spec.generation().temperature(),
                                             .top_p = spec.generation().top_p(),
                                             .repetition_penalty = spec.generation().repetition_penalty()},
                                .max_new_tokens = spec.generation().max_new_tokens(),
                                .middle_cut = task->middle_cut()};
  const ModelRunnerOptions options{
      .run_seed = spec.seed(), .questions_per_episode = static_cast<int32_t>(spec.questions_per_episode())};
  std::vector<ExpectedText> expected = expected_texts(*task, questions.train);
  std::ranges::move(expected_texts(*task, questions.heldout), std::back_inserter(expected));
  auto generator = std::make_unique<EngineGenerator>(spec.model_path(), engine, limits,
                                                     evaluation::asks_by_message(spec.task().prompt_style())
                                                         ? model::PromptForm::kMessage
                                                         : model::PromptForm::kText,
                                                     /*system=*/"", expected);
  auto meter = std::make_unique<EngineDivergence>(generator.get());
  auto answers = std::make_unique<ModelRunner>(std::move(generator), std::move(task), std::move(questions),
                                               options, clock);
  FindQuestion question = [of = answers.get()](Split split, uint32_t id) -> const evaluation::Question& {
    return of->question(split, id);
  };
  auto divergences =
      std::make_unique<DivergenceRunner>(std::move(meter), evaluation::make_task(task_source(spec.task())),
                                         std::move(question), spec.seed(), clock);
  const RewardKind first =
      spec.divergence_episodes() > 0 ? RewardKind::kDivergence : parse_reward_kind(spec.reward_kind());
  return std::make_unique<KindsRunner>(std::move(answers), std::move(divergences), first);
}

}  // namespace allot::worker
