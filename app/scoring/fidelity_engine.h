// The engine behind a fidelity plan.
#pragma once

#include <cstdint>
#include <string>

#include "app/scoring/fidelity_plan.h"
#include "evaluation/fidelity.h"
#include "model/engine.h"

namespace allot::app {

// Of the option --mode.
model::FidelityMode fidelity_mode(const std::string& mode);

// Device, dtype, weights, adapter, method and threads of the plan, with room for the texts of a pass.
model::EngineOptions fidelity_engine_options(const FidelityPlan& plan);

// A text of the plan as the engine takes it, drawn with the plan's seed. `item` must outlive it.
model::FidelityText fidelity_text(const FidelityPlan& plan, const FidelityItem& item, uint32_t sampling_seed);

// What the engine measured, as evaluation keeps it.
evaluation::TextFidelity text_fidelity(const model::Fidelity& measured);

}  // namespace allot::app
