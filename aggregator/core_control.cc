// Core: operators' commands to a running run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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

std::string outside(const char* what, int64_t value, int64_t most) {
  return fmt::format("{} is {}, 1 to {} is expected", what, value, most);
}

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
  RunControlled record{.episodes = control.episodes(),
                       .reward = control.reward(),
                       .bounds = control.bounds(),
                       .lease_seconds = control.lease_seconds(),
                       .max_attempts = control.max_attempts(),
                       .worker = control.worker(),
                       .heldout_questions = control.heldout_questions(),
                       .by = by,
                       .at = now};
  switch (control.action()) {
    case wire::Control::ACTION_PAUSE:
      if (stage() == Stage::kFinished) return "the run is finished";
      record.action = ControlAction::kPause;
      note(std::move(record));
      return fmt::format("paused; {} leases still run", leases_.num_live());
    case wire::Control::ACTION_RESUME:
      if (!paused_) return "the run is not paused";
      record.action = ControlAction::kResume;
      note(std::move(record));
      return "resumed";
    case wire::Control::ACTION_LEASE_SECONDS:
      if (record.lease_seconds < 1 || record.lease_seconds > kMostLeaseSeconds)
        return outside("lease-seconds", record.lease_seconds, kMostLeaseSeconds);
      record.action = ControlAction::kLeaseSeconds;
      note(std::move(record));
      return fmt::format("leases run for {} s when they are granted or renewed from now on",
                         control.lease_seconds());
    case wire::Control::ACTION_MAX_ATTEMPTS:
      if (record.max_attempts < 1 || record.max_attempts > kMostAttempts)
        return outside("max-attempts", record.max_attempts, kMostAttempts);
      record.action = ControlAction::kMaxAttempts;
      note(std::move(record));
      for (const EpisodeId exhausted : leases_.exhausted()) give_up(exhausted, now);
      return fmt::format("episodes have {} attempts from now on", control.max_attempts());
    case wire::Control::ACTION_CORDON:
      return cordon(std::move(record));
    case wire::Control::ACTION_UNCORDON:
      return uncordon(std::move(record));
    case wire::Control::ACTION_EPISODES:
      return want_episodes(std::move(record));
    case wire::Control::ACTION_HELDOUT_QUESTIONS:
      return verify_on(std::move(record));
    case wire::Control::ACTION_STOP:
    case wire::Control::ACTION_TARGET:
    case wire::Control::ACTION_BOUNDS:
      break;
    default:
      return fmt::format("action {} is not known to this release", static_cast<int>(control.action()));
  }
  if (stage() != Stage::kLearn && stage() != Stage::kPreflight)
    return fmt::format("the learning is over, the stage is {}", name(stage()));
  if (control.action() == wire::Control::ACTION_BOUNDS) return bound(std::move(record));
  if (control.action() == wire::Control::ACTION_TARGET) return aim_at(std::move(record));
  record.action = ControlAction::kStop;
  record.episodes = plan_.learned();
  note(std::move(record));
  return fmt::format("learning stops after {} episodes and those that run", plan_.learned());
}

void Core::note(RunControlled record) {
  const Timestamp now = record.at;
  perform(std::move(record));
  note_version(now);
}

std::string Core::cordon(RunControlled record) {
  const std::string worker = record.worker;
  if (!is_name(worker))
    return fmt::format("worker name '{}' is not 1 to {} printable bytes", one_line(worker, 40),
                       kMaxNameBytes);
  if (cordoned_.contains(worker)) return fmt::format("{} is cordoned already", worker);
  if (std::ssize(cordoned_) >= kMostCordoned)
    return fmt::format("{} names are cordoned already; uncordon one of them, or cordon the holder of a key",
                       cordoned_.size());
  record.action = ControlAction::kCordon;
  note(std::move(record));
  const int64_t held =
      holder_of(worker) == worker ? leases_.num_held_by_holder(worker) : leases_.num_held(worker);
  return fmt::format("{} gets no leases from now on; {} that it holds still run", worker, held);
}

std::string Core::uncordon(RunControlled record) {
  const std::string worker = record.worker;
  if (!cordoned_.contains(worker))
    return fmt::format("{} is not cordoned; cordoned are: {}", one_line(worker, kMaxNameBytes),
                       cordoned_.empty() ? "none" : fmt::format("{}", fmt::join(cordoned_, ", ")));
  record.action = ControlAction::kUncordon;
  note(std::move(record));
  return fmt::format("{} gets leases again", worker);
}

// What is being verified when the run learns on is another schedule than the one that it will end with.
std::string Core::want_episodes(RunControlled record) {
  const int64_t episodes = record.episodes;
  if (episodes < 1 || episodes > kMostEpisodes) return outside("episodes", episodes, kMostEpisodes);
  record.action = ControlAction::kEpisodes;
  if (stage() == Stage::kLearn || stage() == Stage::kPreflight) {
    note(std::move(record));
    return fmt::format("{} learning episodes are wanted, {} are done", episodes, plan_.learned());
  }
  if (!plan_.can_learn_on(episodes))
    return fmt::format(
        "the stage is {}: a run learns on from there to more than its {} episodes, not to {}, and not where its "
        "preflight ended it",
        name(stage()), plan_.learned(), episodes);
  std::vector<EpisodeId> open;
  for (const auto& [id, one] : open_)
    if (one.episode.stage == Stage::kVerify) open.push_back(id);
  std::ranges::sort(open);
  for (const EpisodeId id : open)
    withdraw(id, fmt::format("{} wants the run to learn on", record.by), record.at);
  note(std::move(record));
  return fmt::format(
      "the run learns on: {} learning episodes are wanted, {} are done; then it is verified again", episodes,
      plan_.learned());
}

std::string Core::verify_on(RunControlled record) {
  if (std::string reason = plan_.why_not_verify(record.heldout_questions); !reason.empty()) return reason;
  record.action = ControlAction::kHeldoutQuestions;
  note(std::move(record));
  return fmt::format("the run is verified on {} held-out questions", plan_.heldout_questions());
}

std::string Core::bound(RunControlled record) {
  const std::string bounds = record.bounds;
  try {
    (void)policy::rebound(policy_config(spec_), policy::parse_bounds(bounds));
  } catch (const InvalidArgument& fault) {
    return fault.what();
  }
  record.action = ControlAction::kBounds;
  note(std::move(record));
  if (bounds.empty()) return "schedules keep no bounds but the floor from now on";
  return fmt::format("schedules keep the bounds {} from now on; the one recommended now is {}", bounds,
                     policy().recommend().to_string());
}

std::string Core::aim_at(RunControlled record) {
  const double reward = record.reward;
  const Timestamp now = record.at;
  const RewardKindRow& kind = row_of(plan_.reward_kind());
  if (!std::isfinite(reward) || reward <= kind.low || reward > kind.high)
    return fmt::format("the target is a mean reward of {}, above {} and at most {} is expected", reward,
                       kind.low, kind.high);
  record.action = ControlAction::kTarget;
  note(std::move(record));
  stop_at_target(now);
  return fmt::format("learning stops when the last {} episodes have a mean reward of {}; now it is {}",
                     Plan::kRecentRewards, kind.format(reward), kind.format(plan_.mean_reward_recent()));
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
