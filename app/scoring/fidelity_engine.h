// The engine behind a fidelity plan.
#pragma once

#include <string>

#include "app/scoring/fidelity_plan.h"
#include "model/engine.h"

namespace allot::app {

// Of the option --mode.
model::FidelityMode fidelity_mode(const std::string& mode);

// Device, dtype, adapter, method and threads of the plan, with room for the texts of a pass.
model::EngineOptions fidelity_engine_options(const FidelityPlan& plan);

}  // namespace allot::app
