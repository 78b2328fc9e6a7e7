#include "worker/schedule_score.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/error.h"

namespace allot::worker {
namespace {

int64_t episodes_per_schedule(uint32_t questions) {
  return (int64_t{questions} + kQuestionsPerScoringEpisode - 1) / kQuestionsPerScoringEpisode;
}

Episode scoring_episode(int64_t number, std::span<const std::vector<int32_t>> schedules, uint32_t questions) {
  const int64_t per_schedule = episodes_per_schedule(questions);
  const auto first = static_cast<uint32_t>(number % per_schedule) * kQuestionsPerScoringEpisode;
  Episode episode;
  episode.id = {number};
  episode.samples = schedules[static_cast<size_t>(number / per_schedule)];
  for (uint32_t question = first; question < std::min(first + kQuestionsPerScoringEpisode, questions);
       ++question)
    episode.questions.push_back(question);
  return episode;
}

}  // namespace

size_t scored_schedule(EpisodeId episode, uint32_t questions) {
  return static_cast<size_t>(episode.value / episodes_per_schedule(questions));
}

std::vector<ScheduleScore> score_schedules(EpisodeRunner* runner,
                                           std::span<const std::vector<int32_t>> schedules,
                                           uint32_t questions, const ScoringControl& control) {
  std::vector<ScheduleScore> scores(schedules.size());
  for (ScheduleScore& score : scores) score.scores.resize(questions);
  const int64_t episodes = episodes_per_schedule(questions) * std::ssize(schedules);
  const int64_t wanted = int64_t{questions} * std::ssize(schedules);
  // One episode more than fill the runner, so that it starts on the next one as soon as it has room.
  const int64_t in_flight_limit = int64_t{runner->capacity()} + 1;
  int64_t started = 0;
  int64_t finished = 0;
  int64_t answered = 0;
  while (finished < episodes) {
    if (control.stop_asked()) throw Error(fmt::format("stopped after {} of {} answers", answered, wanted));
    for (; started < episodes && started - finished < in_flight_limit; ++started)
      runner->start(scoring_episode(started, schedules, questions));
    for (const EpisodeResult& result : runner->advance()) {
      const size_t schedule = scored_schedule(result.episode, questions);
      if (!result.error.empty())
        throw Error(fmt::format("schedule {} of {}: {}", schedule + 1, schedules.size(), result.error));
      ScheduleScore& score = scores[schedule];
      for (const QuestionResult& answer : result.results) {
        score.scores[answer.question] = answer.score;
        score.prompt_tokens += answer.prompt_tokens;
        score.output_tokens += answer.output_tokens;
        score.cut_off += answer.finish == Finish::kLength;
      }
      ++finished;
      answered += std::ssize(result.results);
    }
    control.progress(answered, wanted);
  }
  return scores;
}

}  // namespace allot::worker
