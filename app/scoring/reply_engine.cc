#include "app/scoring/reply_engine.h"

#include "app/cli/version.h"
#include "app/files/executed_file.h"
#include "base/file.h"
#include "evaluation/task.h"

namespace allot::app {

model::EngineOptions engine_options(const ReplyOptions& options, const evaluation::Conditions& conditions) {
  model::EngineOptions engine;
  engine.adapter = options.adapter;
  engine.dtype = conditions.generation.dtype;
  engine.weights = conditions.generation.weights;
  engine.keys = conditions.generation.keys;
  engine.attention = conditions.attention;
  engine.max_sequences = options.max_sequences;
  engine.device = options.device;
  engine.threads = options.threads;
  engine.count_execution = !options.executed_out.empty();
  return engine;
}

void write_executed(const ReplyPlan& plan, const ReplyOptions& options, const model::Engine& engine) {
  if (options.executed_out.empty()) return;
  const NamedSchedule& named = plan.schedules.front();
  evaluation::Conditions conditions = plan.conditions;
  // A config.json that carries its schedule has another hash than the one that the schedule was learned with.
  if (named.label == kOwnSchedule) conditions.unknown.insert("model.config_sha256");
  write_file_atomically(options.executed_out,
                        format_executed_file({.engine = "allot",
                                              .engine_version = version(),
                                              .computed_by = engine.options().device,
                                              .conditions = std::move(conditions),
                                              .run_id = named.file ? named.file->run_id : "",
                                              .schedule = *named.schedule,
                                              .layers = engine.execution()}));
}

worker::GenerationLimits generation_limits(const ReplyPlan& plan) {
  const evaluation::Generation& generation = plan.conditions.generation;
  return {.sampling = {.temperature = generation.temperature,
                       .top_p = generation.top_p,
                       .repetition_penalty = generation.repetition_penalty},
          .max_new_tokens = generation.max_new_tokens,
          .middle_cut = plan.task ? plan.task->middle_cut() : std::nullopt};
}

}  // namespace allot::app
