// Decides which episodes a run needs, in order: first dense and the even schedule on a few training questions
// (the preflight, where the spec asks for one), then the policy's proposals on training questions, then the
// paired verification of uniform, learned and dense on the held-out questions, then none. A run that
// evaluates has one stage, of the episodes that evaluation_plan.h gives, and no policy in it. Learning begins
// when every episode of the preflight is told or given up, and not at all where the preflight gives a reason
// against it. Pure and deterministic: the same spec and the same calls give the same episodes, so a restart
// can replay them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/evaluation_plan.h"
#include "aggregator/learning_curve.h"
#include "aggregator/preflight.h"
#include "aggregator/records.h"
#include "policy/policy.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

// Question batches of the learning stage. Each epoch goes through the training questions in a new
// random order, which depends on the run seed, in whole batches; questions left over at its end wait
// for the next epoch.
class QuestionOrder {
 public:
  // 1 <= per_batch <= questions.
  QuestionOrder(uint32_t run_seed, uint32_t questions, uint32_t per_batch);
  // `count` different question ids, 1 <= count <= questions; a function of (seed, questions, per_batch,
  // batch, count) alone. A smaller `count` gives the first ids of a larger one. Ids beyond per_batch are
  // those of the next batches and, at the end of an epoch, its first ids again.
  std::vector<uint32_t> batch(int64_t batch, uint32_t count);

 private:
  uint32_t run_seed_;
  uint32_t per_batch_;
  int64_t batches_per_epoch_;
  std::optional<int64_t> epoch_;  // the epoch of order_
  std::vector<uint32_t> order_;
};

// Sampling seed of question batch `batch` of a stage: the same for every schedule that is scored
// on the batch.
uint32_t sampling_seed(uint32_t run_seed, Stage stage, int64_t batch);

// A schedule of the verification and its scores so far.
struct VerifiedSchedule {
  std::string label;             // "uniform", "learned", "dense"
  std::vector<int32_t> samples;  // [layers]; empty = dense
  int64_t answered = 0;
  int64_t right = 0;  // answers whose score is 1
  double score_sum = 0;

  double mean() const { return answered == 0 ? 0 : score_sum / static_cast<double>(answered); }
};

class Plan {
 public:
  static constexpr size_t kRecentRewards = 20;

  // Takes a validated spec and a policy that was not asked for anything yet; of a spec that evaluates also
  // what it asks.
  Plan(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, EvaluationWork work = {});

  Stage stage() const { return stage_; }
  // The next episode, or nothing while the stage needs no more. While learning, no more episodes are asked
  // than are still wanted; one that is given up or too stale to learn from is replaced by a new one.
  std::optional<PlannedEpisode> next();
  // Of a run that evaluates: an episode that the history has, in place of next(). begin_evaluation() ends the
  // replay (evaluation_plan.h). Throws std::logic_error where its number is not the next.
  void asked_before(const PlannedEpisode& episode);
  void begin_evaluation();
  // Null in a run that learns.
  const EvaluationPlan* evaluation() const { return evaluation_ ? &*evaluation_ : nullptr; }
  // The number of the next episode that is none of the plan's own.
  EpisodeId next_number() { return {next_episode_++}; }
  // Takes the results of an open episode; false when it was too stale to learn from.
  bool tell(const PlannedEpisode& episode, std::span<const QuestionResult> results, const Work& work = {});
  // Gives an open episode up.
  void give_up(const PlannedEpisode& episode);

  // Changes the number of learning episodes, in place of the spec's. Open episodes are learned from in any
  // case; when none is open any more the verification begins. A run that is verified or finished learns on
  // where `episodes` is more than it has learned from, and what was verified counts no more: the verification
  // is made again, of the new schedule. Throws std::logic_error where it cannot learn on, or episodes of the
  // verification are open.
  void want(int64_t episodes);
  bool can_learn_on(int64_t episodes) const;  // so that want() takes them after the learning stage
  int64_t wanted() const { return wanted_; }
  // Changes the number of held-out questions, in place of the spec's. Those that the verification has begun
  // with are finished in any case; a finished run is verified on more of them. Throws std::logic_error where
  // why_not_verify() has a reason.
  void verify_on(int64_t heldout_questions);
  // Empty where verify_on() takes them, else what is wrong.
  std::string why_not_verify(int64_t heldout_questions) const;

  // Schedules of the policy keep these bounds from now on.
  void bound(const policy::Bounds& bounds) { policy_->bound(bounds); }

  RewardKind reward_kind() const { return kind_; }
  // The kind of the next episode, as far as it is known before the policy is asked, which may name another.
  RewardKind next_kind() const;
  const policy::Policy& policy() const { return *policy_; }
  int64_t learned() const { return learned_; }
  const Preflight& preflight() const { return preflight_; }
  // Episodes of the current and the later stages that are neither told nor given up yet.
  int64_t remaining() const;
  // How many open episodes make sense (policy::Policy::useful_in_flight()); nothing while none is too many.
  std::optional<int64_t> useful_at_once() const;
  // Mean reward of the last kRecentRewards learning episodes of the run's kind that were used; 0 before the
  // first.
  double mean_reward_recent() const;
  const LearningCurve& curve() const { return curve_; }
  bool recent_is_full() const { return recent_rewards_.size() == kRecentRewards; }
  // Empty before the verification.
  const std::vector<VerifiedSchedule>& verified() const { return verified_; }
  // That the run is verified on.
  int64_t heldout_questions() const { return heldout_questions_; }

 private:
  PlannedEpisode next_learning();
  // The questions that a proposal names, or those of its group, as many as an episode of this kind has.
  // Throws std::logic_error when it names one twice or one that the training split does not have, or wants
  // none.
  std::vector<uint32_t> questions_of(const policy::Proposal& proposal, RewardKind kind);
  PlannedEpisode next_preflight();
  PlannedEpisode next_verification();
  bool verification_wants_more() const;
  int64_t unasked_verification_episodes() const;
  void close_episode();
  void end_learning_when_done();
  void end_verification_when_done();

  // Of a proposal of `group` that names none.
  RewardKind kind_of_group(int64_t group) const;

  // From the spec.
  RewardKind kind_;
  int64_t divergence_episodes_;
  uint32_t seed_;
  uint32_t train_questions_;
  uint32_t questions_per_episode_;
  uint32_t divergence_questions_;    // of an episode of that kind
  uint32_t most_heldout_questions_;  // that the held-out file has; 0 = no worker has one
  uint32_t heldout_questions_;       // wanted, from the spec or verify_on()
  uint32_t preflight_questions_;
  int64_t preflight_episodes_;
  bool ignore_preflight_;
  std::vector<int32_t> uniform_samples_;  // [layers]

  std::unique_ptr<policy::Policy> policy_;
  QuestionOrder train_;
  Preflight preflight_;
  std::optional<EvaluationPlan> evaluation_;
  Stage stage_;
  int64_t wanted_;
  int64_t next_episode_ = 0;
  int64_t next_proposal_ = 0;                 // the policy's number of it
  std::map<EpisodeId, int64_t> proposal_of_;  // of open learning episodes
  // The last group whose proposals named no kind, and what is measured of it.
  std::optional<std::pair<int64_t, RewardKind>> last_group_;
  int64_t open_ = 0;     // episodes of the current stage
  int64_t learned_ = 0;  // learning episodes that were told and used
  int64_t preflight_asked_ = 0;
  int64_t preflight_closed_ = 0;
  int64_t verify_asked_ = 0;
  // The questions of the verification's last batch.
  uint32_t verify_first_ = 0;
  uint32_t verify_end_ = 0;
  std::vector<VerifiedSchedule> verified_;
  std::deque<double> recent_rewards_;
  LearningCurve curve_;
};

}  // namespace allot::aggregator
