// Core: what each record does to the state, when it is made and when the history is replayed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "aggregator/core.h"
#include "aggregator/outlook.h"
#include "aggregator/run_spec.h"
#include "base/error.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

constexpr size_t kControlsShown = 50;

// Compares doubles within rounding, because a run may move to a machine whose exp() differs in the last bit.
bool close(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

bool close(const policy::Description& a, const policy::Description& b) {
  const auto close_scalars = [](const auto& one, const auto& other) {
    return one.name == other.name && close(one.value, other.value);
  };
  return a.layer_name == b.layer_name &&
         std::ranges::equal(a.per_layer, b.per_layer, [](double x, double y) { return close(x, y); }) &&
         std::ranges::equal(a.scalars, b.scalars, close_scalars);
}

// Says in words where the two differ.
std::string first_difference(const policy::Description& now, const policy::Description& recorded) {
  if (now.layer_name != recorded.layer_name || now.per_layer.size() != recorded.per_layer.size()) {
    return fmt::format("{} {}s, recorded {} {}s", now.per_layer.size(), now.layer_name,
                       recorded.per_layer.size(), recorded.layer_name);
  }
  for (size_t layer = 0; layer < now.per_layer.size(); ++layer) {
    if (!close(now.per_layer[layer], recorded.per_layer[layer])) {
      return fmt::format("{} of layer {} is {}, recorded {}", now.layer_name, layer, now.per_layer[layer],
                         recorded.per_layer[layer]);
    }
  }
  for (const auto& scalar : now.scalars) {
    const double* other = recorded.find(scalar.name);
    if (other == nullptr) return fmt::format("no {} is recorded", scalar.name);
    if (!close(scalar.value, *other)) {
      return fmt::format("{} is {}, recorded {}", scalar.name, scalar.value, *other);
    }
  }
  return "its digest";
}

bool same(const PlannedEpisode& a, const PlannedEpisode& b) {
  return static_cast<const Episode&>(a) == b && a.stage == b.stage && a.label == b.label &&
         a.group == b.group && a.policy_version == b.policy_version && close(a.log_prob, b.log_prob);
}

template <class T>
void push_bounded(std::deque<T>* queue, T value, size_t most) {
  queue->push_back(std::move(value));
  if (queue->size() > most) queue->pop_front();
}

}  // namespace

void Core::apply(const EpisodeAsked& asked) {
  // What an evaluation asks follows from what its caller has, not from the history.
  if (plan_.evaluation() != nullptr) {
    plan_.asked_before(asked.episode);
    PlannedEpisode& open = open_[asked.episode.id].episode = asked.episode;
    // Histories do not have it. One that is not found is not leased, since its schedule is not asked any
    // more.
    open.task = plan_.evaluation()->task_of(asked.episode).value_or(0);
    leases_.offer(asked.episode.id);
    return;
  }
  std::optional<PlannedEpisode> again;
  if (asked.episode.stage == Stage::kCheck) {
    again = cross_check_.begin({asked.episode.group});
    again->id = plan_.next_number();
  } else {
    again = plan_.next();
  }
  if (!again || !same(*again, asked.episode)) {
    throw CorruptFile(fmt::format(
        "episode {} of the history is not the one that the spec gives when it is asked again; spec.json "
        "or the history was changed, or they were written by another release of the policy",
        asked.episode.id.value));
  }
  again->log_prob = asked.episode.log_prob;  // the rest is equal
  open_[asked.episode.id].episode = *std::move(again);
  leases_.offer(asked.episode.id);
}

void Core::apply(const LeaseGranted& granted) {
  leases_.grant(granted.lease, granted.episode, granted.worker, granted.at);
}

void Core::apply(const LeaseEnded& ended) {
  if (ended.how == LeaseEnd::kSuperseded) return;  // was handled with the outcome that superseded it
  if (!leases_.is_live(ended.lease))
    throw std::logic_error(fmt::format("lease {} ends twice", ended.lease.value));
  const EpisodeId episode = leases_.episode(ended.lease);
  std::string worker = leases_.holder(ended.lease);
  leases_.end(ended.lease, ended.how);
  Open& open = open_.at(episode);
  open.past_leases.push_back({ended.lease, worker});
  if (!uses_up_an_attempt(ended.how)) return;
  open.attempts.push_back({std::move(worker), ended.how, ended.reason});
}

void Core::apply(const EpisodeTold& told) {
  if (told.told_version != policy().version()) {
    throw std::logic_error(fmt::format("episode {} was told to policy version {} and is told to {} again",
                                       told.episode.value, told.told_version, policy().version()));
  }
  const bool used = tell(told);
  if (used != (told.verdict != AckVerdict::kStale)) {
    throw std::logic_error(fmt::format("the outcome of episode {} was {}stale and is not so again",
                                       told.episode.value, used ? "" : "not "));
  }
  leases_.done(told.episode, told.lease, told.verdict);
}

void Core::apply(const EpisodeGivenUp& given_up) {
  if (given_up.kind == GiveUp::kWithdrawn)
    leases_.withdraw(given_up.episode);
  else
    leases_.give_up(given_up.episode);
  const PlannedEpisode& episode = open_.at(given_up.episode).episode;
  if (episode.stage == Stage::kCheck)
    cross_check_.give_up(episode);
  else
    plan_.give_up(episode);
  open_.erase(given_up.episode);
  if (given_up.kind != GiveUp::kWithdrawn) push_bounded(&given_up_, given_up, kGivenUpShown);
}

void Core::apply(const AnswersKept& kept) {
  const auto found = open_.find(kept.episode);
  if (found == open_.end())
    throw std::logic_error(
        fmt::format("answers of episode {} are kept, which is not open", kept.episode.value));
  Open& open = found->second;
  const std::vector<uint32_t>& questions = open.episode.questions;
  open.kept.resize(questions.size());
  for (const QuestionResult& result : kept.results) {
    const auto asked = std::ranges::find(questions, result.question);
    if (asked == questions.end() || open.kept[static_cast<size_t>(asked - questions.begin())]) {
      throw std::logic_error(
          fmt::format("the answer to question {} of episode {} is kept, which is not asked", result.question,
                      kept.episode.value));
    }
    open.kept[static_cast<size_t>(asked - questions.begin())] = result;
  }
  open.kept_seconds += kept.seconds;
}

void Core::apply(const RunControlled& controlled) {
  switch (controlled.action) {
    case ControlAction::kPause:
      paused_ = true;
      break;
    case ControlAction::kResume:
      paused_ = false;
      break;
    case ControlAction::kTarget:
      if (!row_of(plan_.reward_kind()).holds(controlled.reward))
        throw std::logic_error(
            fmt::format("the target is a mean reward of {}, which no episode can have", controlled.reward));
      target_ = controlled.reward;
      break;
    case ControlAction::kStop:
    case ControlAction::kEpisodes:
      target_.reset();
      until_settled_ = until_settled_ && by_run_until_settled(controlled.by);
      settled_ = controlled.by == kBySettled;
      plan_.want(controlled.episodes);
      call_workers_back();
      break;
    case ControlAction::kHeldoutQuestions:
      plan_.verify_on(controlled.heldout_questions);
      call_workers_back();
      break;
    case ControlAction::kBounds:
      plan_.bound(policy::parse_bounds(controlled.bounds));
      break;
    case ControlAction::kLeaseSeconds:
      leases_.set_lease_time(std::chrono::seconds(controlled.lease_seconds));
      peers_.clear();  // at the Hello that each is asked for it learns how often to say something
      break;
    case ControlAction::kMaxAttempts:
      leases_.set_max_attempts(controlled.max_attempts);
      break;
    case ControlAction::kCordon:
      cordoned_.insert(controlled.worker);
      next_look_ = {};  // others may take its share
      break;
    case ControlAction::kUncordon:
      cordoned_.erase(controlled.worker);
      next_look_ = {};
      break;
  }
  push_bounded(&controls_, controlled, kControlsShown);
}

// A run that was finished goes on.
void Core::call_workers_back() {
  if (stage() == Stage::kFinished) return;
  for (auto& [worker_name, worker] : workers_) worker.heard_finished = false;
}

void Core::apply(const VersionReached& reached) {
  // A history from before outlooks were recorded holds the rest of the description.
  const policy::Description described =
      outlook_of(reached.described) ? describe_with_outlook(policy()) : policy().describe();
  const bool same_state = !reached.digest || *reached.digest == policy().digest();
  // Where states differ only in their last bits, their descriptions are still close. A learner that describes
  // nothing cannot be compared this way, so its digest must be equal.
  const bool is_described = !described.per_layer.empty() || !described.scalars.empty();
  if (reached.version != policy().version() || !close(described, reached.described) ||
      (!same_state && !is_described)) {
    throw CorruptFile(
        fmt::format("the history holds policy version {} where replaying it gives version {} or another "
                    "state ({}); it was changed or written by another release of the policy",
                    reached.version, policy().version(), first_difference(described, reached.described)));
  }
  replayed_exactly_ = replayed_exactly_ && same_state && described == reached.described;
  noted_version_ = reached.version;
  note_outlook(reached.described);
}

bool Core::tell(const EpisodeTold& told) {
  const EpisodeId episode = told.episode;
  const std::vector<QuestionResult>& results = told.results;
  const auto open = open_.find(episode);
  if (open == open_.end())
    throw std::logic_error(fmt::format("episode {} is told but not open", episode.value));
  if (results.size() != open->second.episode.questions.size()) {
    throw std::logic_error(fmt::format("episode {} is told {} results to {} questions", episode.value,
                                       results.size(), open->second.episode.questions.size()));
  }
  telling_.assign(results.begin(), results.end());
  const RewardKindRow& kind = row_of(open->second.episode.kind);
  for (size_t place = 0; place < telling_.size(); ++place) {
    telling_[place].question = open->second.episode.questions[place];
    if (!kind.holds(telling_[place].score))
      throw std::logic_error(fmt::format("question {} of episode {} has score {}, {} to {} is expected of {}",
                                         telling_[place].question, episode.value, telling_[place].score,
                                         kind.low, kind.high, kind.name));
  }
  const PlannedEpisode episode_told = std::move(open->second.episode);
  open_.erase(open);
  if (episode_told.stage == Stage::kCheck) {
    cross_check_.finish(episode_told, telling_, told.worker);
    return true;
  }
  const bool used = plan_.tell(episode_told, telling_, {told.worker, told.seconds, told.at});
  if (used) cross_check_.told(episode_told, telling_, told.worker);
  return used;
}

void Core::note_version(Timestamp now) {
  if (policy().version() == noted_version_) return;
  noted_version_ = policy().version();
  described_ = describe_with_outlook(policy());
  note_outlook(described_);
  outputs_.records.emplace_back(
      VersionReached{noted_version_, described_, policy().recommend().samples, policy().digest(), now});
  stop_when_settled(now);
}

}  // namespace allot::aggregator
