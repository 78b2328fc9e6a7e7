#include "worker/schedule_score.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "base/error.h"

namespace allot::worker {
namespace {

int64_t episodes_of(const Sitting& sitting) {
  return (std::ssize(sitting.questions) + kQuestionsPerScoringEpisode - 1) / kQuestionsPerScoringEpisode;
}

// Of a sitting: the questions from `first` on.
Episode scoring_episode(int64_t number, const Sitting& sitting, size_t first) {
  const size_t count = std::min<size_t>(kQuestionsPerScoringEpisode, sitting.questions.size() - first);
  const auto questions = std::span(sitting.questions).subspan(first, count);
  return {.id = {number},
          .samples = sitting.samples,
          .questions = {questions.begin(), questions.end()},
          .sampling_seed = sitting.sampling_seed};
}

// An episode that is answered now.
struct InFlight {
  size_t sitting = 0;
  size_t first = 0;  // place of its first question in the sitting
};

}  // namespace

size_t scored_sitting(EpisodeId episode, std::span<const Sitting> sittings) {
  int64_t before = 0;
  for (size_t i = 0; i < sittings.size(); ++i) {
    before += episodes_of(sittings[i]);
    if (episode.value < before) return i;
  }
  throw InvalidArgument(fmt::format("episode {} of {}; expected a smaller number", episode.value, before));
}

std::vector<SittingScore> score_sittings(EpisodeRunner* runner, std::span<const Sitting> sittings,
                                         const ScoringControl& control) {
  std::vector<SittingScore> scores;
  int64_t wanted = 0;
  for (const Sitting& sitting : sittings) {
    scores.push_back({.scores = std::vector<double>(sitting.questions.size())});
    wanted += std::ssize(sitting.questions);
  }
  // One episode more than fill the runner, so that it starts on the next one as soon as it has room.
  const size_t in_flight_limit = static_cast<size_t>(runner->capacity()) + 1;
  std::map<EpisodeId, InFlight> in_flight;
  InFlight next;
  int64_t started = 0;
  int64_t answered = 0;
  while (answered < wanted) {
    if (control.stop_asked()) throw Error(fmt::format("stopped after {} of {} answers", answered, wanted));
    while (in_flight.size() < in_flight_limit) {
      while (next.sitting < sittings.size() && next.first == sittings[next.sitting].questions.size())
        next = {.sitting = next.sitting + 1, .first = 0};
      if (next.sitting == sittings.size()) break;
      Episode episode = scoring_episode(started++, sittings[next.sitting], next.first);
      in_flight.emplace(episode.id, next);
      next.first += episode.questions.size();
      runner->start(std::move(episode));
    }
    for (const EpisodeResult& result : runner->advance()) {
      const auto episode = in_flight.find(result.episode);
      const auto [sitting, first] = episode->second;
      if (!result.error.empty()) throw Error(fmt::format("{}: {}", sittings[sitting].label, result.error));
      SittingScore& score = scores[sitting];
      for (size_t i = 0; i < result.results.size(); ++i) {
        const QuestionResult& answer = result.results[i];
        score.scores[first + i] = answer.score;
        score.prompt_tokens += answer.prompt_tokens;
        score.output_tokens += answer.output_tokens;
        score.cut_off += answer.finish == Finish::kLength;
      }
      in_flight.erase(episode);
      answered += std::ssize(result.results);
    }
    control.progress(answered, wanted);
  }
  return scores;
}

}  // namespace allot::worker
