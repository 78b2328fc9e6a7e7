// Runs episodes on a generator: questions to prompts, replies to results. Several episodes with
// different schedules share the generator's batch; an episode is done when its last question is
// answered. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "evaluation/generator.h"
#include "evaluation/task.h"
#include "worker/episode_runner.h"

namespace allot::worker {

// The questions of a run, for each split.
struct Questions {
  std::vector<evaluation::Question> train;
  std::vector<evaluation::Question> heldout;
};

struct ModelRunnerOptions {
  uint32_t run_seed = 0;  // first half of every draw's key; the second is the episode's sampling seed
  int32_t questions_per_episode = 16;  // usual size of an episode; what capacity() fills up with
};

// Not for use by several threads at once. Results are a function of the episode and the seeds, not of other
// work in flight, as far as that holds for the generator's replies.
class ModelRunner final : public EpisodeRunner {
 public:
  // `clock` outlives the runner.
  ModelRunner(std::unique_ptr<evaluation::Generator> generator, std::unique_ptr<evaluation::Task> task,
              Questions questions, const ModelRunnerOptions& options, const Clock& clock);

  // The episodes that run and as many of usual size as fill the rest of the generator.
  int capacity() const override;
  // An episode that cannot be run (no questions, an unknown question, a schedule that does not fit the model,
  // a prompt that is too long) comes back from the next advance() with its error.
  void start(Episode episode) override;
  // Throws what the generator throws when the model itself fails.
  std::vector<EpisodeResult> advance() override;
  EpisodeResult answered_so_far(EpisodeId episode) const override;
  WorkDone work_done() const override { return done_; }
  void cancel(EpisodeId episode) override;

  // Sets a function that is called with each graded reply, for commands that show or keep replies. `place` is
  // the question's index in its episode.
  using Observer =
      std::function<void(const Episode&, size_t place, const evaluation::Reply&, const evaluation::Grade&)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // The question with this number in a split. Throws InvalidArgument naming id, split and its size.
  const evaluation::Question& question(Split split, uint32_t id) const;

 private:
  struct Running {
    Episode episode;
    std::vector<QuestionResult> results;  // in the order of episode.questions
    std::vector<ReplyText> texts;         // in that order; empty where nobody wants them
    std::vector<uint64_t> prompts;        // id of each question's prompt
    size_t unanswered = 0;
    Timestamp started;
  };
  struct Place {
    EpisodeId episode;
    size_t index = 0;  // in the episode's questions
  };

  void submit(Running* running);
  void withdraw(const Running& running);
  void take(const evaluation::Reply& reply);

  std::unique_ptr<evaluation::Generator> generator_;
  std::unique_ptr<evaluation::Task> task_;
  Questions questions_;
  ModelRunnerOptions options_;
  const Clock& clock_;
  Observer observer_;
  uint64_t next_prompt_ = 1;
  std::map<EpisodeId, Running> running_;
  std::unordered_map<uint64_t, Place> places_;  // of the prompts in the generator
  std::vector<EpisodeResult> finished_;         // to be returned by the next advance()
  WorkDone done_;
};

}  // namespace allot::worker
