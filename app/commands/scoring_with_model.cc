// eval, verify and ablate of the executable with the model runtime.
#include "app/cli/command.h"
#include "app/commands/scoring_commands.h"
#include "app/scoring/engine_here.h"

namespace allot::app {

int run_eval(std::span<const std::string> arguments) {
  EngineHere model;
  return eval(arguments, &model);
}

int run_verify(std::span<const std::string> arguments) {
  EngineHere model;
  return verify(arguments, &model);
}

int run_ablate(std::span<const std::string> arguments) {
  EngineHere model;
  return ablate(arguments, &model);
}

}  // namespace allot::app
