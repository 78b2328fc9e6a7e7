#include "aggregator/evaluation_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace allot::aggregator {

void EvaluationPlan::Schedule::count(double score) {
  ++answered;
  right += score == 1;
  score_sum += score;
}

EvaluationPlan::EvaluationPlan(EvaluationWork work, std::span<const uint32_t> questions_per_episode) {
  std::set<std::string> labels;
  for (EvaluatedSchedule& one : work.schedules) {
    if (!labels.insert(one.label).second)
      throw InvalidArgument(fmt::format(
          "two schedules of the evaluation are called '{}', expected different names", one.label));
    if (one.task >= questions_per_episode.size())
      throw InvalidArgument(fmt::format("schedule '{}' is of task {}, expected one of the run's {}",
                                        one.label, one.task, questions_per_episode.size()));
    const size_t wanted = size_t{one.repeats} * one.questions;
    if (one.scores.size() != wanted)
      throw InvalidArgument(fmt::format("schedule '{}' has {} scores, expected {} x {}", one.label,
                                        one.scores.size(), one.repeats, one.questions));
    Schedule& schedule = schedules_.emplace_back();
    schedule.label = std::move(one.label);
    schedule.samples = std::move(one.samples);
    schedule.task = one.task;
    schedule.questions = one.questions;
    schedule.per_episode = questions_per_episode[one.task];
    schedule.places.resize(wanted, Place::kToAsk);
    schedule.to_ask.resize(one.repeats, one.questions);
    for (size_t place = 0; place < wanted; ++place) {
      if (!one.scores[place]) continue;
      schedule.places[place] = Place::kAnswered;
      schedule.count(*one.scores[place]);
      --schedule.to_ask[place / one.questions];
    }
  }
}

EvaluationPlan::Schedule* EvaluationPlan::find(std::string_view label) {
  return const_cast<Schedule*>(std::as_const(*this).find(label));
}

const EvaluationPlan::Schedule* EvaluationPlan::find(std::string_view label) const {
  const auto found = std::ranges::find(schedules_, label, &Schedule::label);
  return found == schedules_.end() ? nullptr : &*found;
}

std::optional<size_t> EvaluationPlan::place_of(const Schedule& schedule, const PlannedEpisode& episode,
                                               uint32_t question) {
  if (episode.sampling_seed >= schedule.to_ask.size() || question >= schedule.questions) return std::nullopt;
  return size_t{episode.sampling_seed} * schedule.questions + question;
}

std::optional<uint32_t> EvaluationPlan::task_of(const PlannedEpisode& episode) const {
  const Schedule* schedule = find(episode.label);
  return schedule == nullptr ? std::nullopt : std::optional(schedule->task);
}

std::optional<PlannedEpisode> EvaluationPlan::next() {
  const auto first_to_ask = [&](const Schedule& schedule) {
    const auto from = schedule.places.begin() + static_cast<std::ptrdiff_t>(next_.place);
    return static_cast<size_t>(std::find(from, schedule.places.end(), Place::kToAsk) -
                               schedule.places.begin());
  };
  while (next_.schedule < schedules_.size() &&
         (next_.place = first_to_ask(schedules_[next_.schedule])) == schedules_[next_.schedule].places.size())
    next_ = {.schedule = next_.schedule + 1, .place = 0};
  if (next_.schedule == schedules_.size()) return std::nullopt;

  Schedule& schedule = schedules_[next_.schedule];
  const size_t repeat = next_.place / schedule.questions;
  PlannedEpisode episode;
  episode.label = schedule.label;
  episode.group = static_cast<int64_t>(repeat);
  episode.samples = schedule.samples;
  episode.sampling_seed = static_cast<uint32_t>(repeat);
  episode.replies = true;
  episode.task = schedule.task;
  for (size_t& place = next_.place;
       place < (repeat + 1) * schedule.questions && episode.questions.size() < schedule.per_episode;
       ++place) {
    if (schedule.places[place] != Place::kToAsk) continue;
    schedule.places[place] = Place::kOpen;
    episode.questions.push_back(static_cast<uint32_t>(place % schedule.questions));
    --schedule.to_ask[repeat];
  }
  ++open_;
  return episode;
}

void EvaluationPlan::asked_before(const PlannedEpisode& episode) {
  ++open_;
  Schedule* schedule = find(episode.label);
  if (schedule == nullptr) return;
  for (const uint32_t question : episode.questions) {
    const auto place = place_of(*schedule, episode, question);
    if (!place || schedule->places[*place] != Place::kToAsk) continue;
    schedule->places[*place] = Place::kOpen;
    --schedule->to_ask[episode.sampling_seed];
  }
}

bool EvaluationPlan::still_wanted(const PlannedEpisode& episode, const std::vector<bool>& kept) const {
  const Schedule* schedule = find(episode.label);
  if (schedule == nullptr || schedule->samples != episode.samples) return false;
  for (size_t i = 0; i < episode.questions.size(); ++i) {
    const auto place = place_of(*schedule, episode, episode.questions[i]);
    if (!place || schedule->places[*place] != (kept[i] ? Place::kAnswered : Place::kOpen)) return false;
  }
  return true;
}

void EvaluationPlan::begin() {
  begun_ = true;
}

void EvaluationPlan::tell(const PlannedEpisode& episode, std::span<const QuestionResult> results) {
  --open_;
  told_ += begun_;
  Schedule* schedule = find(episode.label);
  if (schedule == nullptr) return;
  for (const QuestionResult& result : results) {
    const auto place = place_of(*schedule, episode, result.question);
    if (!place || schedule->places[*place] != Place::kOpen) continue;
    if (begun_) {
      schedule->places[*place] = Place::kAnswered;
      schedule->count(result.score);
    } else {
      schedule->places[*place] = Place::kToAsk;
      ++schedule->to_ask[episode.sampling_seed];
    }
  }
}

void EvaluationPlan::give_up(const PlannedEpisode& episode) {
  --open_;
  Schedule* schedule = find(episode.label);
  if (schedule == nullptr) return;
  for (const uint32_t question : episode.questions) {
    const auto place = place_of(*schedule, episode, question);
    if (!place || schedule->places[*place] != Place::kOpen) continue;
    schedule->places[*place] = begun_ ? Place::kGivenUp : Place::kToAsk;
    ++(begun_ ? given_up_ : schedule->to_ask[episode.sampling_seed]);
  }
}

bool EvaluationPlan::nothing_to_ask() const {
  return std::ranges::all_of(schedules_, [](const Schedule& schedule) {
    return std::ranges::all_of(schedule.to_ask, [](int64_t questions) { return questions == 0; });
  });
}

int64_t EvaluationPlan::remaining() const {
  int64_t episodes = open_;
  for (const Schedule& schedule : schedules_)
    for (const int64_t questions : schedule.to_ask)
      episodes += (questions + schedule.per_episode - 1) / schedule.per_episode;
  return episodes;
}

std::vector<EvaluationPlan::Progress> EvaluationPlan::progress() const {
  std::vector<Progress> all;
  for (const Schedule& one : schedules_)
    all.push_back({.label = one.label,
                   .samples = &one.samples,
                   .answered = one.answered,
                   .right = one.right,
                   .wanted = std::ssize(one.places),
                   .score_sum = one.score_sum});
  return all;
}

}  // namespace allot::aggregator
