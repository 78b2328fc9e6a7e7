#include "aggregator/wire_conversion.h"

#include <array>

#include "wire/messages.pb.h"

namespace allot::aggregator {

wire::Ack_Verdict to_wire(AckVerdict verdict) {
  using wire::Ack;
  static constexpr std::array kVerdicts = {
      Ack::VERDICT_UNSPECIFIED, Ack::VERDICT_ACCEPTED, Ack::VERDICT_DUPLICATE, Ack::VERDICT_LATE,
      Ack::VERDICT_STALE,       Ack::VERDICT_FAILED,   Ack::VERDICT_REJECTED};  // [AckVerdict]
  return kVerdicts[static_cast<size_t>(verdict)];
}

wire::ControlEvent to_wire(const RunControlled& controlled) {
  using wire::Control;
  static constexpr std::array kActions = {
      Control::ACTION_PAUSE,         Control::ACTION_RESUME,           Control::ACTION_STOP,
      Control::ACTION_TARGET,        Control::ACTION_EPISODES,         Control::ACTION_BOUNDS,
      Control::ACTION_LEASE_SECONDS, Control::ACTION_MAX_ATTEMPTS,     Control::ACTION_CORDON,
      Control::ACTION_UNCORDON,      Control::ACTION_HELDOUT_QUESTIONS};  // [ControlAction]
  wire::ControlEvent event;
  event.set_action(kActions[static_cast<size_t>(controlled.action)]);
  event.set_episodes(controlled.episodes);
  event.set_reward(controlled.reward);
  event.set_bounds(controlled.bounds);
  event.set_lease_seconds(controlled.lease_seconds);
  event.set_max_attempts(controlled.max_attempts);
  event.set_worker(controlled.worker);
  event.set_heldout_questions(controlled.heldout_questions);
  event.set_by(controlled.by);
  event.set_at_ms(controlled.at.time_since_epoch().count());
  return event;
}

std::string action_word(wire::Control_Action action) {
  const std::string& enumerator = wire::Control::Action_Name(action);
  std::string word = enumerator.substr(enumerator.find('_') + 1);
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(c - 'A' + 'a');
  return word;
}

wire::GivenUp to_wire(const EpisodeGivenUp& given_up) {
  wire::GivenUp message;
  message.set_episode(given_up.episode.value);
  message.set_poisoned(given_up.kind == GiveUp::kPoisoned);
  message.set_reason(given_up.reason);
  return message;
}

wire::Score to_wire(const VerifiedSchedule& schedule, int64_t wanted) {
  wire::Score score;
  score.set_label(schedule.label);
  score.mutable_samples()->Add(schedule.samples.begin(), schedule.samples.end());
  score.set_answered(schedule.answered);
  score.set_correct(schedule.right);
  score.set_wanted(wanted);
  if (schedule.answered > 0 && schedule.score_sum != static_cast<double>(schedule.right))
    score.set_mean(schedule.mean());
  return score;
}

}  // namespace allot::aggregator
