// Questions answered by workers: the schedules of a plan as leases, whose answers go into the directory of
// its evaluation. The same answers as those of a model in this process, wherever the workers are.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "app/cli/options.h"
#include "app/run/listen_options.h"
#include "app/scoring/evaluation_run.h"
#include "app/scoring/scoring_plan.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// What workers are told of the plan: everything but its schedules, which come with the leases. Throws the
// errors of the readers.
wire::RunSpec evaluation_spec(const ScoringPlan& plan);

// Serves leases of these schedules at plan.options.leases.listen until every question of the plan is answered
// in every repeat, with progress on stderr; returns at once where `run` has all answers. An answer is in
// `run` and on disk before its worker hears that it was taken. Who works on what is kept in the directory of
// `run`, so a later call goes on with the leases of one that was killed, unless another plan has changed what
// workers are told. Returns how many answers came. Throws what aggregator::Service throws, Mismatch where the
// directory is that of a run that learned, and Error when asked to stop or when questions stay without an
// answer, with the reasons.
int64_t answer_on_workers(const ScoringPlan& plan, std::span<const NamedSchedule> schedules,
                          EvaluationRun* run);

}  // namespace allot::app
