#include "app/scoring/engine_here.h"

#include <span>

#include "app/scoring/reply_engine.h"
#include "worker/engine_generator.h"

namespace allot::app {
namespace {

worker::GeneratorTask generator_task(const ScoringPlan& plan, const evaluation::Task& task) {
  return {
      .limits = generation_limits(plan),
      .form = prompt_form(plan.conditions.task.prompt_style),
      .expected = worker::expected_texts(task, std::span(plan.dataset.questions).first(plan.questions()))};
}

}  // namespace

std::unique_ptr<evaluation::Generator> EngineHere::load(const ScoringPlan& plan,
                                                        const evaluation::Task& task) {
  const model::EngineOptions options = options_ ? *options_ : engine_options(plan.options, plan.conditions);
  std::unique_ptr<worker::EngineGenerator> generator;
  if (expected_.empty()) {
    const worker::GeneratorTask alone = generator_task(plan, task);
    generator = std::make_unique<worker::EngineGenerator>(plan.options.model, options, alone.limits,
                                                          alone.form, alone.system, alone.expected);
  } else {
    if (generators_.empty()) {
      std::vector<worker::GeneratorTask> tasks;
      for (const ScoringPlan& one : expected_) tasks.push_back(generator_task(one, *one.task));
      generators_ = worker::EngineGenerator::for_tasks(plan.options.model, options, tasks);
    }
    generator = std::move(generators_[static_cast<size_t>(&plan - expected_.data())]);
  }
  engine_ = &generator->engine();
  return generator;
}

void EngineHere::write_executed(const ScoringPlan& plan) {
  app::write_executed(plan, plan.options, engine());
}

}  // namespace allot::app
