// Questions answered by workers: the schedules of a plan as leases, whose answers go into the directory of
// its evaluation. The same answers as those of a model in this process, wherever the workers are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "app/cli/options.h"
#include "app/run/listen_options.h"
#include "app/scoring/evaluation_run.h"
#include "app/scoring/scoring_plan.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// What is asked of one of the tasks that are evaluated together.
struct LeasedPlan {
  const ScoringPlan* plan = nullptr;
  std::span<const NamedSchedule> schedules;
  EvaluationRun* run = nullptr;
};

// What workers are told of the plans, whose names differ where there are several: everything but the
// schedules, which come with the leases. They agree in all that the options of a suite's sections do not set
// (suite.h). Throws the errors of the readers.
wire::RunSpec evaluation_spec(std::span<const LeasedPlan> plans);

// Serves leases of these schedules at the plans' leases.listen until every question is answered in every
// repeat, with progress on stderr; returns at once where the runs have all answers. An answer is in the
// plan's run and on disk before its worker hears that it was taken. Who works on what is kept in `directory`,
// so a later call goes on with the leases of one that was killed, unless other plans have changed what
// workers are told. Returns how many answers came to each plan. Throws what aggregator::Service throws,
// Mismatch where the directory is that of a run that learned, and Error when asked to stop or when questions
// stay without an answer, with the reasons.
std::vector<int64_t> answer_on_workers(std::span<const LeasedPlan> plans,
                                       const std::filesystem::path& directory);

}  // namespace allot::app
