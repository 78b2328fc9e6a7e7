// eval, verify and ablate of the light executable: workers answer, so that an evaluation is served from a
// machine or an image without a model runtime.
#include "app/cli/command.h"
#include "app/commands/scoring_commands.h"

namespace allot::app {

int run_eval_on_workers(std::span<const std::string> arguments) {
  return eval(arguments, nullptr);
}

int run_verify_on_workers(std::span<const std::string> arguments) {
  return verify(arguments, nullptr);
}

int run_ablate_on_workers(std::span<const std::string> arguments) {
  return ablate(arguments, nullptr);
}

}  // namespace allot::app
