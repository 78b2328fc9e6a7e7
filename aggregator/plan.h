// What a run asks for, in order: first the policy's proposals on training questions, then the paired
// verification of uniform, learned and dense on the held-out questions, then nothing. Pure and deterministic:
// the same spec and the same calls give the same episodes, so a restart replays it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/learning_curve.h"
#include "aggregator/records.h"
#include "policy/policy.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

// Question batches of the learning stage. Each epoch visits the training questions in a new random order
// under the run seed, in whole batches; the few left over at its end wait for the next epoch.
class QuestionOrder {
 public:
  // 1 <= per_batch <= questions.
  QuestionOrder(uint32_t run_seed, uint32_t questions, uint32_t per_batch);
  // `count` different question ids, 1 <= count <= questions; a function of (seed, questions, per_batch,
  // batch, count) alone. Of one batch, fewer are the first of more; those after per_batch are the next
  // batches' and, at the end of an epoch, again its first.
  std::vector<uint32_t> batch(int64_t batch, uint32_t count);

 private:
  uint32_t run_seed_;
  uint32_t per_batch_;
  int64_t batches_per_epoch_;
  std::optional<int64_t> epoch_;  // that order_ is of
  std::vector<uint32_t> order_;
};

// Sampling seed of question batch `batch` of a stage: the same for every schedule that is scored on the
// batch.
uint32_t sampling_seed(uint32_t run_seed, Stage stage, int64_t batch);

class Plan {
 public:
  static constexpr size_t kRecentRewards = 20;

  // A validated spec and a policy that was asked nothing yet.
  Plan(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy);

  Stage stage() const { return stage_; }
  // The next episode, or nothing while all that the stage needs is asked. While learning, never more are
  // asked than are still wanted; one set aside or too stale to learn from is replaced by a new one.
  std::optional<Episode> next();
  // Takes the results of an open episode; false when it was too stale to learn from.
  bool tell(const Episode& episode, const std::vector<QuestionResult>& results);
  // Gives an open episode up.
  void set_aside(const Episode& episode);

  // Learning episodes wanted from now on, in place of the spec's number; those that are open are learned from
  // in any case, and when nothing is open any more the verification begins. Throws std::logic_error once it
  // has begun.
  void want(int64_t episodes);
  int64_t wanted() const { return wanted_; }

  const policy::Policy& policy() const { return *policy_; }
  int64_t learned() const { return learned_; }
  // Episodes of the present stage and those after it that are neither told nor set aside yet.
  int64_t remaining() const;
  // Of the last kRecentRewards learning episodes that were used, 0 before the first.
  double mean_reward_recent() const;
  const LearningCurve& curve() const { return curve_; }
  bool recent_is_full() const { return recent_rewards_.size() == kRecentRewards; }
  // Empty before the verification.
  std::vector<wire::Score> scores() const;

 private:
  struct Candidate {
    const char* label;
    std::vector<int32_t> samples;  // empty = dense
    int64_t answered = 0;
    int64_t correct = 0;
  };

  Episode next_learning();
  // The questions that a proposal names, or those of its group. Throws std::logic_error when it names others
  // than different ones of the training split, or wants more than there are.
  std::vector<uint32_t> questions_of(const policy::Proposal& proposal);
  Episode next_verification();
  void close_episode();
  void end_learning_when_done();

  wire::RunSpec spec_;
  std::unique_ptr<policy::Policy> policy_;
  QuestionOrder train_;
  Stage stage_ = Stage::kLearn;
  int64_t wanted_;
  int64_t next_episode_ = 0;
  int64_t open_ = 0;     // of the present stage
  int64_t learned_ = 0;  // told while learning and used
  int64_t verify_asked_ = 0;
  int64_t verify_closed_ = 0;
  std::vector<Candidate> candidates_;
  std::deque<double> recent_rewards_;
  LearningCurve curve_;
};

}  // namespace allot::aggregator
