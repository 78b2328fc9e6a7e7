// Core: the status that others see, and the check of its invariants.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "aggregator/core.h"
#include "aggregator/run_spec.h"
#include "aggregator/wire_conversion.h"

namespace allot::aggregator {
namespace {

// Of the workers of a status; at 100 bytes a row, as usual names need, over 40,000 workers. The rest of a
// status is far smaller than what a frame (8 MiB) has beyond it.
constexpr size_t kMostWorkerBytes = size_t{4} << 20;

}  // namespace

bool Core::everyone_heard_finished() const {
  return std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.heard_finished; });
}

// Whatever names and devices workers give, a status fits into a frame: those that hold leases are listed
// first, then those that were heard of within a lease time, then the silent ones; what does not fit is
// counted.
void Core::list_workers(Timestamp now, wire::Status* status) const {
  enum class Rank { kBusy, kPresent, kSilent };
  struct Row {
    const Worker* worker;
    int leases;
    Rank rank;
  };
  std::vector<Row> rows;
  rows.reserve(workers_.size());
  for (const auto& [worker_name, worker] : workers_) {
    const int leases = leases_.num_held(worker_name);
    const Rank rank = leases > 0 ? Rank::kBusy : was_heard(worker, now) ? Rank::kPresent : Rank::kSilent;
    rows.push_back({&worker, leases, rank});
  }
  std::ranges::stable_sort(rows, {}, &Row::rank);  // by name within a rank
  size_t bytes = 0;
  for (const auto& [worker, leases, rank] : rows) {
    wire::WorkerStatus row;
    row.set_worker(worker->name);
    row.set_device(worker->device);
    row.set_build(worker->build);
    row.set_leases(leases);
    row.set_episodes_done(worker->episodes_done);
    row.set_last_seen_ms((now - worker->last_seen).count());
    row.set_failures_in_a_row(worker->faults.in_a_row);
    if (quarantined(*worker, now)) row.set_quarantined_ms((quarantined_until(*worker) - now).count());
    row.set_last_failure(worker->faults.last);
    row.set_cordoned(cordoned(*worker));
    if (worker->load) *row.mutable_load() = *worker->load;
    constexpr size_t kTagAndLength = 4;
    bytes += row.ByteSizeLong() + kTagAndLength;
    if (bytes > kMostWorkerBytes) break;
    *status->add_workers() = std::move(row);
  }
  status->set_workers_unlisted(std::ssize(workers_) - status->workers_size());
}

wire::Status Core::status(Timestamp now) const {
  const auto seconds = [](Duration duration) { return std::chrono::duration<double>(duration).count(); };
  wire::Status status;
  describe_run(spec_, &status);
  status.set_lease_ms(leases_.lease_time().count());
  status.set_stage(std::string(name(stage())));
  status.set_episodes_done(plan_.learned());
  status.set_episodes_wanted(plan_.wanted());
  status.set_episodes_running(static_cast<int64_t>(leases_.num_live()));
  status.set_mean_reward_recent(plan_.mean_reward_recent());
  describe_policy(described_, &status);
  status.set_until_settled(until_settled_);
  status.set_settled(settled_);
  const std::vector<int32_t> recommended = policy().recommend().samples;
  status.mutable_recommended()->Add(recommended.begin(), recommended.end());
  status.set_policy_version(policy().version());
  status.set_elapsed_s(seconds(spent_before_ + (now - started_)));
  status.set_eta_s(-1);
  if (stage() == Stage::kFinished) {
    status.set_eta_s(0);
  } else if (recent_tells_.size() >= 2 && now > recent_tells_.front()) {
    const double rate = static_cast<double>(recent_tells_.size() - 1) / seconds(now - recent_tells_.front());
    status.set_episodes_per_second(rate);
    if (!paused_) status.set_eta_s(static_cast<double>(plan_.remaining()) / rate);
  }
  *status.mutable_counters() = counters_;
  list_workers(now, &status);
  for (const VerifiedSchedule& schedule : plan_.verified())
    *status.add_scores() = to_wire(schedule, plan_.heldout_questions());
  if (const EvaluationPlan* evaluation = plan_.evaluation()) {
    status.set_episodes_done(evaluation->told());
    status.set_episodes_wanted(evaluation->told() + evaluation->remaining());
    for (const EvaluationPlan::Progress& one : evaluation->progress())
      *status.add_scores() = to_wire({.label = std::string(one.label),
                                      .samples = *one.samples,
                                      .answered = one.answered,
                                      .right = one.right,
                                      .score_sum = one.score_sum},
                                     one.wanted);
  }
  if (preflight_episodes(spec_) > 0) {
    std::map<std::string, int64_t, std::less<>> at_once;
    for (const auto& [worker_name, worker] : workers_) {
      if (worker.device.starts_with("cuda") && !cordoned(worker))
        at_once[worker_name] = int64_t{worker.capacity} * spec_.questions_per_episode();
    }
    *status.mutable_preflight() = plan_.preflight().describe(stage() != Stage::kPreflight, at_once);
  }
  if (spec_.cross_check() > 0) *status.mutable_cross_check() = cross_check_.tally().describe();
  status.set_epoch(epoch_);
  plan_.curve().write(status.mutable_curve());
  status.set_paused(paused_);
  status.set_target_reward(target_.value_or(0));
  for (const EpisodeGivenUp& given_up : given_up_) {
    *status.add_given_up() = to_wire(given_up);
  }
  for (const RunControlled& controlled : controls_) {
    *status.add_steering() = to_wire(controlled);
  }
  return status;
}

std::vector<std::string> Core::broken_invariants() const {
  std::vector<std::string> broken = leases_.broken_invariants();
  const auto check = [&](bool holds, const char* what, int64_t id) {
    if (!holds) broken.push_back(fmt::format("{} ({})", what, id));
  };
  check(open_.size() == leases_.num_open(), "as many episodes are open as the lease table has",
        std::ssize(open_));
  for (const auto& [episode, open] : open_) {
    check(open.episode.id == episode, "an open episode is under its own number", episode.value);
    check(open.kept.empty() || open.kept.size() == open.episode.questions.size(), "one place per question",
          episode.value);
    check(open.missing() > 0, "an episode with all its answers is told", episode.value);
    check(std::ssize(open.attempts) + 1 == leases_.attempt(episode), "a record for each attempt used up",
          episode.value);
  }
  check(counters_.preempted() <= counters_.released(), "preempted leases are released ones",
        counters_.preempted());
  check(counters_.timed_out() <= counters_.expired(), "timed-out leases are expired ones",
        counters_.timed_out());
  check(counters_.poisoned() <= counters_.set_aside(), "poisoned episodes are given up",
        counters_.poisoned());
  return broken;
}

}  // namespace allot::aggregator
