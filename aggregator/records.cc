#include "aggregator/records.h"

#include <algorithm>
#include <array>

namespace allot::aggregator {

std::string_view name(Stage stage) {
  switch (stage) {
    case Stage::kLearn:
      return "learn";
    case Stage::kVerify:
      return "verify";
    case Stage::kFinished:
      return "finished";
  }
  return "";
}

wire::SteeringEvent to_wire(const Steered& steered) {
  using wire::Control;
  static constexpr std::array kActions = {Control::ACTION_PAUSE, Control::ACTION_RESUME, Control::ACTION_STOP,
                                          Control::ACTION_TARGET, Control::ACTION_EPISODES};  // [Steering]
  wire::SteeringEvent event;
  event.set_action(kActions[static_cast<size_t>(steered.action)]);
  event.set_episodes(steered.episodes);
  event.set_reward(steered.reward);
  event.set_by(steered.by);
  event.set_at_ms(steered.at.time_since_epoch().count());
  return event;
}

wire::GivenUp to_wire(const EpisodeSetAside& set_aside) {
  wire::GivenUp given_up;
  given_up.set_episode(set_aside.episode.value);
  given_up.set_poisoned(set_aside.kind == GiveUp::kPoisoned);
  given_up.set_reason(set_aside.reason);
  return given_up;
}

double reward(const std::vector<QuestionResult>& results) {
  const auto correct = std::ranges::count(results, true, &QuestionResult::correct);
  return static_cast<double>(correct) / static_cast<double>(results.size());
}

}  // namespace allot::aggregator
