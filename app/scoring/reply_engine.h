// The engine that a plan of replies asks for.
#pragma once

#include "app/scoring/reply_plan.h"
#include "worker/engine_generator.h"

namespace allot::app {

model::EngineOptions engine_options(const ReplyOptions& options, const evaluation::Conditions& conditions);
// Writes what the engine has counted under the plan's one schedule to options.executed_out, where it is set.
void write_executed(const ReplyPlan& plan, const ReplyOptions& options, const model::Engine& engine);
worker::GenerationLimits generation_limits(const ReplyPlan& plan);

}  // namespace allot::app
