// The look at a run before it learns: dense attention and the even schedule on the same few training
// questions. It says what the run will take, and whether there is anything to learn. Pure: a function of the
// spec and the results.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "episode/question_result.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

// Who ran an episode, how long it took there and when its result came.
struct Work {
  std::string worker;
  double seconds = 0;
  Timestamp at;
};

class Preflight {
 public:
  // The schedules that are measured, in the order of asking.
  static constexpr std::array<std::string_view, 2> kLabels = {"dense", "uniform"};
  // A run is stopped only where dense attention answered at least this many questions.
  static constexpr int64_t kLeastAnswers = 16;
  // Dense answers none to speak of where the upper bound of the 95 % interval of its accuracy is below this,
  // or where the sum of its scores is below 2.
  static constexpr double kLeastAccuracy = 0.05;

  explicit Preflight(const wire::RunSpec& spec);

  // Takes the results of one episode, whose questions they name.
  void add(std::string_view label, std::span<const QuestionResult> results, const Work& work);

  // Why the run should not learn, and what to change, for people; empty where nothing speaks against it.
  // Final once all episodes are told or given up.
  std::string stop_reason() const;
  // What is shown to people; `done` says that no episode is missing any more. `at_once` has the questions
  // that a worker answers at once, of those on which as many take no longer than a few: of GPUs, whose small
  // batches leave them idle.
  wire::Preflight describe(bool done, const std::map<std::string, int64_t, std::less<>>& at_once = {}) const;

 private:
  struct Measured {
    std::map<uint32_t, double> scores;  // by question
    int64_t right = 0;                  // answers whose score is 1
    double score_sum = 0;
    int64_t cut_off = 0;
    int64_t no_answer = 0;
    int64_t prompt_tokens = 0;
    int64_t output_tokens = 0;

    int64_t answered() const { return static_cast<int64_t>(scores.size()); }
    double mean() const { return scores.empty() ? 0 : score_sum / static_cast<double>(answered()); }
  };

  std::string dense_fails() const;
  std::string nothing_to_gain() const;
  std::vector<std::string> warnings() const;
  double worker_seconds() const;
  // For so many replies, with full batches where `at_once` says how large they are.
  double run_worker_seconds(int64_t questions,
                            const std::map<std::string, int64_t, std::less<>>& at_once) const;

  // From the spec.
  int64_t wanted_;  // questions of each schedule
  bool ignored_;
  double gain_floor_;
  double price_per_hour_;
  int64_t total_;
  int32_t max_new_tokens_;
  std::string prompt_style_;
  std::vector<int32_t> even_;     // [layers]
  int64_t episodes_;              // learning
  int64_t divergence_questions_;  // questions of those that measure divergences
  int64_t reply_questions_;       // questions of the others and of the verification

  std::array<Measured, kLabels.size()> measured_;                             // [kLabels]
  std::map<std::string, std::pair<Timestamp, Timestamp>, std::less<>> busy_;  // of each worker: from, to
  std::map<std::string, int64_t, std::less<>> answered_by_;                   // questions, of each worker
};

}  // namespace allot::aggregator
