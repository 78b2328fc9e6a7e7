// The runner of a run: model, task, data and sampling as its spec says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "wire/messages_fwd.h"
#include "worker/episode_runner.h"

namespace allot::worker {

// Settings of this machine, not of the run: results do not depend on them, except for the different rounding
// of another device.
struct MachineOptions {
  std::string device = "cpu";   // as in EngineOptions
  int32_t threads = 0;          // 0 = all cores
  int32_t max_sequences = 256;  // replies decoded together
  std::string grader = {};      // command that grades the replies of a task which asks for one
};

// Runs episodes of every kind of reward. Loads model and data from the paths in `spec`; the held-out file
// only when the run verifies. `clock` outlives the runner. Throws the errors of the readers, and
// InvalidArgument for a name in the spec that this build does not know, and UsageError for a task that needs
// a grader when there is none.
std::unique_ptr<EpisodeRunner> make_spec_runner(const wire::RunSpec& spec, const MachineOptions& machine,
                                                const Clock& clock);

}  // namespace allot::worker
