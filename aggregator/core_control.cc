// Core: operators' commands to a running run.
#include <fmt/format.h>

#include <cmath>

#include "aggregator/core.h"
#include "aggregator/holder.h"
#include "aggregator/outlook.h"
#include "aggregator/peer_text.h"
#include "aggregator/run_spec.h"
#include "aggregator/wire_conversion.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number_text.h"

namespace allot::aggregator {
namespace {

constexpr int64_t kMostEpisodes = 1'000'000'000;
constexpr int64_t kMostLeaseSeconds = 1'000'000;
constexpr int32_t kMostAttempts = 1'000'000;
// More than that are not cordoned at once; a holder stands for all its workers.
constexpr int64_t kMostCordoned = 256;
// A run is settled when this many updates in a row leave less than the gain floor to gain.
constexpr int kSettledUpdates = 3;
// It is not settled before this many episodes: a learner's first estimates rest on few outcomes.
constexpr int64_t kLeastSettledEpisodes = 64;

}  // namespace

void Core::control(const wire::Control& control, Rights rights, Timestamp now) {
  wire::ControlReply answer;
  const std::string by = one_line(control.by(), kMaxNameBytes);
  if (rights != Rights::kOperator) {
    counters_.set_not_allowed(counters_.not_allowed() + 1);
    log(LogKind::kNotAllowed, spdlog::level::warn,
        "refused {} by {} from {}, whose key may not control the run", action_word(control.action()), by,
        sender_text());
    answer.set_message("this key may work for the run, not control it; use an operator's key");
  } else if (by.empty()) {
    answer.set_message("the history notes who controls a run; give a name");
  } else if (by_run_until_settled(by)) {
    answer.set_message(
        fmt::format("the history notes '{}' where the run controls itself; give another name", by));
  } else {
    const size_t before = outputs_.records.size();
    answer.set_message(follow(control, by, now));
    answer.set_done(outputs_.records.size() > before);
    if (answer.done()) spdlog::info("{} by {}: {}", action_word(control.action()), by, answer.message());
  }
  *reply().mutable_control_reply() = std::move(answer);
}

void Core::steer(const wire::Control& control, Timestamp now) {
  const size_t before = outputs_.records.size();
  const std::string answer = follow(control, control.by(), now);
  if (outputs_.records.size() == before) throw Mismatch(answer);
  spdlog::info("{} by {}: {}", action_word(control.action()), control.by(), answer);
}

// Carries out `control` and records it, or refuses it and records nothing. The answer says which.
std::string Core::follow(const wire::Control& control, const std::string& by, Timestamp now) {
  const bool finished = stage() == Stage::kFinished;
  const auto record = [&](ControlAction action) {
    perform(RunControlled{.action = action,
                          .episodes = action == ControlAction::kStop ? plan_.learned() : control.episodes(),
                          .reward = control.reward(),
                          .bounds = control.bounds(),
                          .lease_seconds = control.lease_seconds(),
                          .max_attempts = control.max_attempts(),
                          .worker = control.worker(),
                          .by = by,
                          .at = now});
    note_version(now);
  };
  const auto outside = [](const char* what, int64_t value, int64_t most) {
    return fmt::format("{} is {}, 1 to {} is expected", what, value, most);
  };
  switch (control.action()) {
    case wire::Control::ACTION_PAUSE:
      if (finished) return "the run is finished";
      record(ControlAction::kPause);
      return fmt::format("paused; {} leases still run", leases_.num_live());
    case wire::Control::ACTION_RESUME:
      if (!paused_) return "the run is not paused";
      record(ControlAction::kResume);
      return "resumed";
    case wire::Control::ACTION_LEASE_SECONDS:
      if (control.lease_seconds() < 1 || control.lease_seconds() > kMostLeaseSeconds)
        return outside("lease-seconds", control.lease_seconds(), kMostLeaseSeconds);
      record(ControlAction::kLeaseSeconds);
      return fmt::format("leases run for {} s when they are granted or renewed from now on",
                         control.lease_seconds());
    case wire::Control::ACTION_MAX_ATTEMPTS:
      if (control.max_attempts() < 1 || control.max_attempts() > kMostAttempts)
        return outside("max-attempts", control.max_attempts(), kMostAttempts);
      record(ControlAction::kMaxAttempts);
      for (const EpisodeId exhausted : leases_.exhausted()) give_up(exhausted, now);
      return fmt::format("episodes have {} attempts from now on", control.max_attempts());
    case wire::Control::ACTION_CORDON: {
      const std::string& worker = control.worker();
      if (!is_name(worker))
        return fmt::format("worker name '{}' is not 1 to {} printable bytes", one_line(worker, 40),
                           kMaxNameBytes);
      if (cordoned_.contains(worker)) return fmt::format("{} is cordoned already", worker);
      if (std::ssize(cordoned_) >= kMostCordoned)
        return fmt::format(
            "{} names are cordoned already; uncordon one of them, or cordon the holder of a key",
            cordoned_.size());
      record(ControlAction::kCordon);
      const int64_t held =
          holder_of(worker) == worker ? leases_.num_held_by_holder(worker) : leases_.num_held(worker);
      return fmt::format("{} gets no leases from now on; {} that it holds still run", worker, held);
    }
    case wire::Control::ACTION_UNCORDON:
      if (!cordoned_.contains(control.worker()))
        return fmt::format("{} is not cordoned; cordoned are: {}", one_line(control.worker(), kMaxNameBytes),
                           cordoned_.empty() ? "none" : fmt::format("{}", fmt::join(cordoned_, ", ")));
      record(ControlAction::kUncordon);
      return fmt::format("{} gets leases again", control.worker());
    case wire::Control::ACTION_STOP:
    case wire::Control::ACTION_TARGET:
    case wire::Control::ACTION_EPISODES:
    case wire::Control::ACTION_BOUNDS:
      break;
    default:
      return fmt::format("action {} is not known to this release", static_cast<int>(control.action()));
  }
  if (finished && control.action() == wire::Control::ACTION_EPISODES && control.episodes() <= kMostEpisodes &&
      plan_.can_learn_on(control.episodes())) {
    record(ControlAction::kEpisodes);
    return fmt::format(
        "the run learns on: {} learning episodes are wanted, {} are done; then it is verified again",
        control.episodes(), plan_.learned());
  }
  if (finished && control.action() == wire::Control::ACTION_EPISODES)
    return fmt::format(
        "{} learning episodes are wanted; a finished run learns on to more than the {} that it "
        "has, and not where its preflight ended it",
        control.episodes(), plan_.learned());
  if (stage() != Stage::kLearn && stage() != Stage::kPreflight)
    return fmt::format("the learning is over, the stage is {}", name(stage()));
  if (control.action() == wire::Control::ACTION_STOP) {
    record(ControlAction::kStop);
    return fmt::format("learning stops after {} episodes and those that run", plan_.learned());
  }
  if (control.action() == wire::Control::ACTION_BOUNDS) {
    try {
      (void)policy::rebound(policy_config(spec_), policy::parse_bounds(control.bounds()));
    } catch (const InvalidArgument& fault) {
      return fault.what();
    }
    record(ControlAction::kBounds);
    if (control.bounds().empty()) return "schedules keep no bounds but the floor from now on";
    return fmt::format("schedules keep the bounds {} from now on; the one recommended now is {}",
                       control.bounds(), policy().recommend().to_string());
  }
  if (control.action() == wire::Control::ACTION_EPISODES) {
    if (control.episodes() < 1 || control.episodes() > kMostEpisodes)
      return outside("episodes", control.episodes(), kMostEpisodes);
    record(ControlAction::kEpisodes);
    return fmt::format("{} learning episodes are wanted, {} are done", control.episodes(), plan_.learned());
  }
  const RewardKindRow& kind = row_of(plan_.reward_kind());
  if (!std::isfinite(control.reward()) || control.reward() <= kind.low || control.reward() > kind.high)
    return fmt::format("the target is a mean reward of {}, above {} and at most {} is expected",
                       control.reward(), kind.low, kind.high);
  record(ControlAction::kTarget);
  stop_at_target(now);
  return fmt::format("learning stops when the last {} episodes have a mean reward of {}; now it is {}",
                     Plan::kRecentRewards, kind.format(control.reward()),
                     kind.format(plan_.mean_reward_recent()));
}

// Reaching the target has a record of its own, so that a replay need not compare rewards.
void Core::stop_at_target(Timestamp now) {
  if (!target_ || stage() != Stage::kLearn || !plan_.recent_is_full() ||
      !row_of(plan_.reward_kind()).reaches(plan_.mean_reward_recent(), *target_))
    return;
  spdlog::info("the recent mean reward {:.3f} reached the target {}", plan_.mean_reward_recent(), *target_);
  perform(RunControlled{.action = ControlAction::kStop,
                        .episodes = plan_.learned(),
                        .by = fmt::format("target {}", *target_),
                        .at = now});
}

void Core::note_outlook(const policy::Description& described) {
  const auto outlook = outlook_of(described);
  settled_updates_ = outlook && outlook->left_to_gain < spec_.gain_floor() ? settled_updates_ + 1 : 0;
}

// What is decided here has records of its own, so that a replay need not compare estimates.
void Core::stop_when_settled(Timestamp now) {
  if (!until_settled_ || stage() != Stage::kLearn || plan_.reward_kind() != kVerifiedKind) return;
  const auto outlook = outlook_of(described_);
  if (!outlook) return;
  if (plan_.wanted() == spec_.episodes() && spec_.most_episodes() > spec_.episodes()) {
    perform(RunControlled{.action = ControlAction::kEpisodes,
                          .episodes = spec_.most_episodes(),
                          .by = std::string(kByOutlook),
                          .at = now});
  }
  if (settled_updates_ < kSettledUpdates || plan_.learned() < kLeastSettledEpisodes) return;
  spdlog::info("settled after {} episodes: {} are left to gain, {:.2f} points are not worth going on for",
               plan_.learned(), points(outlook->left_to_gain), 100 * spec_.gain_floor());
  perform(RunControlled{
      .action = ControlAction::kStop, .episodes = plan_.learned(), .by = std::string(kBySettled), .at = now});
}

}  // namespace allot::aggregator
