// Runs episodes of kind `divergence` on a meter: questions to texts, their solutions' divergences to results.
// Nothing is generated. Episodes that ask the same questions with the same draws, as those of a group do, are
// measured together and share their exact passes. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "evaluation/divergence_meter.h"
#include "evaluation/task.h"
#include "worker/episode_runner.h"

namespace allot::worker {

// The question with this number in a split. Throws InvalidArgument for one that is not there.
using FindQuestion = std::function<const evaluation::Question&(Split split, uint32_t id)>;

// Not for use by several threads at once. Results are a function of the episode and the run seed, not of
// other work in flight, as far as that holds for the meter's.
class DivergenceRunner final : public EpisodeRunner {
 public:
  // `clock` outlives the runner. `run_seed` is the first half of every draw's key.
  DivergenceRunner(std::unique_ptr<evaluation::DivergenceMeter> meter, std::unique_ptr<evaluation::Task> task,
                   FindQuestion question, uint32_t run_seed, const Clock& clock);

  int capacity() const override;
  // An episode that cannot be run (no questions, an unknown question, a prompt that is too long, a schedule
  // that does not fit the model) comes back from an advance() with its error.
  void start(Episode episode) override;
  // One call of the meter: texts of the oldest episode, each under the schedules of all episodes that have it
  // to measure. Throws what the meter throws when the model itself fails.
  std::vector<EpisodeResult> advance() override;
  EpisodeResult answered_so_far(EpisodeId episode) const override;
  // The meter fills its passes by itself: the batch is in use whenever the runner is busy.
  WorkDone work_done() const override { return done_; }
  void cancel(EpisodeId episode) override;

 private:
  struct Running {
    Episode episode;
    std::vector<QuestionResult> results = {};         // in the order of episode.questions
    std::vector<evaluation::MeteredText> texts = {};  // likewise
    std::vector<bool> measured = {};                  // likewise
    Timestamp started;
  };
  // A question of an episode.
  struct Place {
    EpisodeId episode;
    size_t index = 0;
  };
  // What one call of the meter measures; the pairs are those of the places.
  struct Batch {
    std::vector<evaluation::MeteredText> texts;
    std::vector<evaluation::MeteredPair> pairs;
    std::vector<Place> places;
  };

  Batch next_batch();
  void add(const evaluation::MeteredText& text, Split split, Batch* batch) const;
  void measure(const Batch& batch);
  // Measures the batch episode by episode, so that only those fail that cannot be measured.
  void measure_one_by_one(const Batch& batch);
  void fail(EpisodeId episode, const std::string& reason);
  double seconds_since(Timestamp start) const;

  std::unique_ptr<evaluation::DivergenceMeter> meter_;
  std::unique_ptr<evaluation::Task> task_;
  FindQuestion question_;
  uint32_t run_seed_;
  const Clock& clock_;
  std::map<EpisodeId, Running> running_;  // the oldest first
  std::vector<EpisodeResult> finished_;
  WorkDone done_;
};

}  // namespace allot::worker
