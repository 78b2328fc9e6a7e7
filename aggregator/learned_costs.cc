#include "aggregator/learned_costs.h"

#include "aggregator/core.h"
#include "aggregator/history.h"
#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "wire/spec.h"

namespace allot::aggregator {

std::optional<policy::LayerCosts> learned_costs(const std::filesystem::path& run_directory) {
  const wire::RunSpec spec = wire::read_spec(spec_path(run_directory));
  require_learner(spec, run_directory);
  const auto history = read_sqlite_history(history_path(run_directory));
  const Core core(spec, policy::make_policy(policy_config(spec)), *history, Timestamp{});
  return core.policy().costs();
}

}  // namespace allot::aggregator
