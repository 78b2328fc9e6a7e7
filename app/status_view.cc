#include "app/status_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "app/progress.h"
#include "app/report/run_summary.h"

namespace allot::app {
namespace {

template <class Repeated>
std::vector<typename Repeated::value_type> values(const Repeated& repeated) {
  return {repeated.begin(), repeated.end()};
}

nlohmann::json counters_json(const wire::Counters& counters) {
  nlohmann::json json = nlohmann::json::object();
  const auto& reflection = *counters.GetReflection();
  for (int i = 0; i < counters.GetDescriptor()->field_count(); ++i) {
    const auto* field = counters.GetDescriptor()->field(i);
    json[field->name()] = reflection.GetInt64(counters, field);
  }
  return json;
}

// "granted 40, accepted 38, expired 2": the counters that are not zero.
std::string counters_line(const wire::Counters& counters) {
  std::string line;
  const nlohmann::json named = counters_json(counters);
  for (const auto& [name, count] : named.items()) {
    if (count != 0) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, count.get<int64_t>());
  }
  return line.empty() ? "none" : line;
}

// "pause", "episodes", …
std::string action_name(const wire::SteeringEvent& event) {
  const std::string& name = wire::Control::Action_Name(event.action());
  std::string word = name.substr(name.find('_') + 1);
  std::ranges::transform(word, word.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return word;
}

// "stop after 120 episodes": what was asked for.
std::string wish_text(const wire::SteeringEvent& event) {
  switch (event.action()) {
    case wire::Control::ACTION_STOP:
      return fmt::format("stop after {} episodes", event.episodes());
    case wire::Control::ACTION_EPISODES:
      return fmt::format("{} episodes", event.episodes());
    case wire::Control::ACTION_TARGET:
      return fmt::format("stop at a mean reward of {}", event.reward());
    default:
      return action_name(event);
  }
}

}  // namespace

wire::Status status_of(const aggregator::RunData& run) {
  wire::Status status;
  status.set_run_id(run.spec.run_id());
  status.set_stage(run.stage);
  status.set_episodes_wanted(run.episodes_wanted);
  const auto learned = learning_episodes(run);
  status.set_episodes_done(static_cast<int64_t>(learned.size()));
  std::vector<double> rewards;
  for (const auto* episode : learned) rewards.push_back(episode->reward);
  if (!rewards.empty()) status.set_mean_reward_recent(moving_mean(rewards).mean.back());
  if (!run.versions.empty()) {
    const auto& version = run.versions.back();
    status.mutable_shares()->Add(version.shares.begin(), version.shares.end());
    status.set_entropy(version.entropy);
  }
  status.mutable_recommended()->Add(run.recommended.begin(), run.recommended.end());
  status.set_policy_version(run.policy_version);
  status.set_elapsed_s(run.elapsed_s);
  status.set_eta_s(run.stage == "finished" ? 0 : -1);
  *status.mutable_counters() = run.counters;
  for (const aggregator::Steered& steered : run.steering) {
    *status.add_steering() = aggregator::to_wire(steered);
    if (steered.action == aggregator::Steering::kPause) status.set_paused(true);
    if (steered.action == aggregator::Steering::kResume) status.set_paused(false);
  }
  for (const auto& row : run.scores) {
    auto* score = status.add_scores();
    score->set_label(row.label);
    score->mutable_samples()->Add(row.samples.begin(), row.samples.end());
    score->set_answered(static_cast<int64_t>(row.correct.size()));
    score->set_correct(std::ranges::count(row.correct, uint8_t{1}));
    score->set_wanted(run.spec.task().heldout_questions());
  }
  return status;
}

nlohmann::json to_json(const wire::Status& status) {
  nlohmann::json json = {
      {"run_id", status.run_id()},
      {"stage", status.stage()},
      {"episodes_done", status.episodes_done()},
      {"episodes_wanted", status.episodes_wanted()},
      {"episodes_running", status.episodes_running()},
      {"mean_reward_recent", status.mean_reward_recent()},
      {"shares", values(status.shares())},
      {"recommended", values(status.recommended())},
      {"entropy", status.entropy()},
      {"policy_version", status.policy_version()},
      {"elapsed_s", status.elapsed_s()},
      {"episodes_per_second", status.episodes_per_second()},
      {"eta_s", status.eta_s() < 0 ? nlohmann::json() : nlohmann::json(status.eta_s())},
      {"counters", counters_json(status.counters())},
      {"workers", nlohmann::json::array()},
      {"scores", nlohmann::json::array()},
      {"epoch", status.epoch()},
      {"paused", status.paused()},
      {"target_reward",
       status.target_reward() > 0 ? nlohmann::json(status.target_reward()) : nlohmann::json()},
      {"given_up", nlohmann::json::array()},
      {"steering", nlohmann::json::array()},
  };
  for (const auto& given_up : status.given_up()) {
    json["given_up"].push_back(
        {{"episode", given_up.episode()}, {"poisoned", given_up.poisoned()}, {"reason", given_up.reason()}});
  }
  for (const auto& event : status.steering()) {
    json["steering"].push_back({{"action", action_name(event)},
                                {"episodes", event.episodes()},
                                {"reward", event.reward()},
                                {"by", event.by()},
                                {"at_ms", event.at_ms()}});
  }
  for (const auto& worker : status.workers()) {
    json["workers"].push_back({{"worker", worker.worker()},
                               {"device", worker.device()},
                               {"build", worker.build()},
                               {"leases", worker.leases()},
                               {"episodes_done", worker.episodes_done()},
                               {"last_seen_ms", worker.last_seen_ms()},
                               {"failures_in_a_row", worker.failures_in_a_row()},
                               {"quarantined_ms", worker.quarantined_ms()},
                               {"last_failure", worker.last_failure()}});
  }
  for (const auto& score : status.scores()) {
    json["scores"].push_back({{"label", score.label()},
                              {"samples", values(score.samples())},
                              {"answered", score.answered()},
                              {"correct", score.correct()},
                              {"wanted", score.wanted()}});
  }
  return json;
}

std::string format_status(const wire::Status& status) {
  std::string text = fmt::format("run       {}, stage {}{}\n", status.run_id(), status.stage(),
                                 status.paused() ? ", paused" : "");
  text += fmt::format("episodes  {} of {} done, {} running, {:.2f} per second, eta {}, {} spent\n",
                      status.episodes_done(), status.episodes_wanted(), status.episodes_running(),
                      status.episodes_per_second(), format_seconds(status.eta_s()),
                      format_seconds(status.elapsed_s()));
  text += fmt::format("policy    version {}, entropy {:.3f}, recent mean reward {:.1f}%\n",
                      status.policy_version(), status.entropy(), 100 * status.mean_reward_recent());
  text += fmt::format("schedule  {}\n", fmt::join(status.recommended(), ","));
  for (const auto& score : status.scores()) {
    const double accuracy = score.answered() > 0
                                ? static_cast<double>(score.correct()) / static_cast<double>(score.answered())
                                : 0;
    text += fmt::format("score     {:<8} {}/{} correct ({:.1f}%), {} wanted\n", score.label(),
                        score.correct(), score.answered(), 100 * accuracy, score.wanted());
  }
  if (status.target_reward() > 0)
    text += fmt::format("target    learning stops at a recent mean reward of {:.1f}%\n",
                        100 * status.target_reward());
  for (const auto& event : status.steering())
    text += fmt::format("steered   {} by {}\n", wish_text(event), event.by());
  for (const auto& given_up : status.given_up()) {
    text += fmt::format("given up  episode {}{}: {}\n", given_up.episode(),
                        given_up.poisoned() ? " (poisoned)" : "", given_up.reason());
  }
  text += "leases    " + counters_line(status.counters()) + "\n";
  for (const auto& worker : status.workers()) {
    text += fmt::format("worker    {} on {}, allot {}: {} leases, {} episodes done, seen {:.1f} s ago\n",
                        worker.worker(), worker.device(), worker.build(), worker.leases(),
                        worker.episodes_done(), static_cast<double>(worker.last_seen_ms()) / 1000);
    if (worker.quarantined_ms() > 0) {
      text += fmt::format("          waits {:.0f} s after {} failures in a row, the last: {}\n",
                          static_cast<double>(worker.quarantined_ms()) / 1000, worker.failures_in_a_row(),
                          worker.last_failure());
    }
  }
  return text;
}

}  // namespace allot::app
