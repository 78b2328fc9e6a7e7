// The engine that a plan of replies asks for.
#pragma once

#include "app/scoring/reply_plan.h"
#include "worker/engine_generator.h"

namespace allot::app {

model::EngineOptions engine_options(const ReplyOptions& options, const evaluation::Conditions& conditions);
worker::GenerationLimits generation_limits(const evaluation::Generation& generation);

}  // namespace allot::app
