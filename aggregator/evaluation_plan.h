// Which questions an evaluation asks next: each under every schedule and in every repeat, but for those that
// are answered already. The caller fixes the schedules and keeps the answers; what he has decides, not the
// history, which only says who works on what. So what is asked may grow from one start to the next. Pure and
// deterministic.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/records.h"
#include "episode/question_result.h"

namespace allot::aggregator {

// A schedule on the questions of a task.
struct EvaluatedSchedule {
  std::string label;             // different from all others, also from those of other tasks
  std::vector<int32_t> samples;  // [layers], as in an Episode; empty = dense
  uint32_t task = 0;             // as Episode::task
  uint32_t repeats = 1;          // repeat r draws with sampling seed r
  uint32_t questions = 0;        // of the task's training file, from its start
  // Of the answers that are there, [repeats, questions]; nothing where a question is to be asked.
  std::vector<std::optional<double>> scores = {};
};

// What an evaluation asks, in this order.
struct EvaluationWork {
  std::vector<EvaluatedSchedule> schedules;
};

class EvaluationPlan {
 public:
  // `questions_per_episode` [tasks]. Throws InvalidArgument for a label that comes twice, a task that is not
  // there, and scores that are not [repeats, questions].
  EvaluationPlan(EvaluationWork work, std::span<const uint32_t> questions_per_episode);

  // The next questions that nobody was asked: of one schedule and repeat, at most as many as an episode has.
  // Nothing when there are none. Number and stage are left to the caller.
  std::optional<PlannedEpisode> next();
  // An episode of the history, asked in an earlier start. Until begin(), what is told or given up is not
  // counted as answered: where the caller does not have the answers, they are asked for again.
  void asked_before(const PlannedEpisode& episode);
  // Whether an episode of the history asks for what is missing and nothing else. `kept[i]` says whether its
  // question i has an answer already.
  bool still_wanted(const PlannedEpisode& episode, const std::vector<bool>& kept) const;
  // Whose questions an episode of the history asks: that of its schedule, which names it there. Nothing where
  // this start does not have the schedule.
  std::optional<uint32_t> task_of(const PlannedEpisode& episode) const;
  // Ends the replay. Must come before the first next().
  void begin();

  void tell(const PlannedEpisode& episode, std::span<const QuestionResult> results);
  // Its questions stay unanswered until the next start.
  void give_up(const PlannedEpisode& episode);

  bool done() const { return begun_ && open_ == 0 && nothing_to_ask(); }
  int64_t told() const { return told_; }          // episodes, since begin()
  int64_t remaining() const;                      // episodes, open ones included
  int64_t given_up() const { return given_up_; }  // questions, since begin()

  struct Progress {
    std::string_view label;
    const std::vector<int32_t>* samples = nullptr;
    int64_t answered = 0, right = 0, wanted = 0;
    double score_sum = 0;
  };
  std::vector<Progress> progress() const;  // by schedule

 private:
  enum class Place : uint8_t { kToAsk, kOpen, kAnswered, kGivenUp };
  struct Schedule {
    std::string label;
    std::vector<int32_t> samples;
    uint32_t task = 0;
    uint32_t questions = 0;
    uint32_t per_episode = 1;
    std::vector<Place> places;    // [repeats, questions]
    std::vector<int64_t> to_ask;  // [repeats]
    int64_t answered = 0, right = 0;
    double score_sum = 0;

    void count(double score);
  };
  struct Cursor {
    size_t schedule = 0;
    size_t place = 0;
  };

  Schedule* find(std::string_view label);
  const Schedule* find(std::string_view label) const;
  bool nothing_to_ask() const;
  // Of a question of an episode of `schedule`; nothing where this start does not want it.
  static std::optional<size_t> place_of(const Schedule& schedule, const PlannedEpisode& episode,
                                        uint32_t question);

  std::vector<Schedule> schedules_;
  Cursor next_;
  bool begun_ = false;
  int64_t open_ = 0;  // episodes
  int64_t told_ = 0;
  int64_t given_up_ = 0;
};

}  // namespace allot::aggregator
