#include "app/scoring/engine_here.h"

#include <span>

#include "app/scoring/reply_engine.h"
#include "worker/engine_generator.h"

namespace allot::app {

std::unique_ptr<evaluation::Generator> EngineHere::load(const ScoringPlan& plan,
                                                        const evaluation::Task& task) {
  auto generator = std::make_unique<worker::EngineGenerator>(
      plan.options.model, options_ ? *options_ : engine_options(plan.options, plan.conditions),
      generation_limits(plan), prompt_form(plan.conditions), /*system=*/"",
      worker::expected_texts(task, std::span(plan.dataset.questions).first(plan.questions())));
  engine_ = &generator->engine();
  return generator;
}

void EngineHere::write_executed(const ScoringPlan& plan) {
  app::write_executed(plan, plan.options, engine());
}

}  // namespace allot::app
