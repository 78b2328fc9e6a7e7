// Scores the schedules of a plan: a model in this process answers, or workers do (leased_answers.h).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/scoring/evaluation_run.h"
#include "app/scoring/scoring_plan.h"
#include "evaluation/accuracy.h"
#include "evaluation/generator.h"

namespace allot::app {

// How a schedule did.
struct Score {
  NamedSchedule schedule;
  std::vector<double> scores;  // by question; the mean of its repeats
  int64_t prompt_tokens = 0;   // these, and those below, of all repeats
  int64_t output_tokens = 0;
  int64_t cut_off = 0;  // replies that ended at their length limit
  int64_t answers = 0;
  // Where questions are asked several times: their scores, a repeat each.
  std::vector<std::vector<double>> repeats = {};
  std::vector<std::string> replies = {};  // a question each, of the first repeat
};

// The model that answers in this process. Executables without a model runtime have none, and let workers
// answer.
class ModelHere {
 public:
  virtual ~ModelHere() = default;
  // These plans, of one model under the same attention, are those that load() is called for, in any order and
  // once each: the model is loaded for the first, with room for the questions of all. They outlive it.
  virtual void expect(std::span<const ScoringPlan> plans) = 0;
  // Loads it for the questions of the plan, once. Throws what loading throws.
  virtual std::unique_ptr<evaluation::Generator> load(const ScoringPlan& plan,
                                                      const evaluation::Task& task) = 0;
  // Writes what it has executed since it was loaded to ReplyOptions::executed_out.
  virtual void write_executed(const ScoringPlan& plan) = 0;
};

// Scores schedules one after another with a model that is loaded once.
class Scorer {
 public:
  // The model is loaded when the first question is asked of it. `plan` and `model` outlive the scorer; the
  // plan's schedules are not looked at. Answers that `run` has are not asked for again, and new ones are
  // added to it; it may be null. `model` may be null where `run` has all answers.
  Scorer(const ScoringPlan& plan, ModelHere* model, EvaluationRun* run = nullptr);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Each on the questions of the plan with the same draws, in this call and in all others, with progress on
  // stderr. Throws what loading the model throws, and Error when asked to stop.
  std::vector<Score> score(std::span<const NamedSchedule> schedules);
  // The lines of the details file, by schedule in the order of scoring, by repeat and by question.
  std::string details() const;
  // Those of the schedule scored as number `schedule`, by repeat and question.
  std::vector<evaluation::Answer> answers(size_t schedule) const;
  // How many answers of these schedules `run` had.
  int64_t answered_before() const;
  // Loads the model if need be; it is idle between calls of score().
  void load();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Scores {
  std::vector<Score> schedules;  // in the order of the plan
  double seconds = 0;            // of this process
  int64_t answered_before = 0;   // by others, in the plan's --run
};

// What to score next with the same model, having seen what was scored so far; nothing to end.
using NextSchedules = std::function<std::vector<NamedSchedule>(std::span<const Score> so_far)>;

// Scores with `model`, or by workers where plan.options.leases has an address; showing progress on stderr.
// Writes the details file when one is wanted. Throws what loading the model and answer_on_workers() throw,
// UsageError where there is neither a model nor an address, and Error when asked to stop.
Scores score(const ScoringPlan& plan, ModelHere* model, const NextSchedules& next = {});

// Scores the schedules of several plans of one model: with `model` task by task, or by workers, which get
// leases of all of them. Answers are kept in each plan's own directory where it has one, and what workers are
// told in `directory`. Throws what score() throws.
std::vector<Scores> score_suite(std::span<const ScoringPlan> plans, const std::filesystem::path& directory,
                                ModelHere* model);

// The accuracy as evaluation::to_json has it, the schedule and what its answers took; with repeats the
// accuracy of each, too.
nlohmann::ordered_json score_json(const Score& score);

// Mean number of tokens of prompt and reply, over all answers.
double scored_tokens(const Score& score);

// "+57.1 points (+50.2 to +63.9), p = 1.2e-20 (121 questions right only here, 7 there)".
std::string format_test(const evaluation::PairedTest& test);

}  // namespace allot::app
