// eval, verify and ablate with the model of the caller's executable, or with none: then workers answer.
#pragma once

#include <span>
#include <string>

#include "app/scoring/scoring.h"

namespace allot::app {

int eval(std::span<const std::string> arguments, ModelHere* model);
int verify(std::span<const std::string> arguments, ModelHere* model);
int ablate(std::span<const std::string> arguments, ModelHere* model);

}  // namespace allot::app
