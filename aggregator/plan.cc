#include "aggregator/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "aggregator/run_spec.h"
#include "base/philox.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

// The second key word of each kind of draw that the plan makes itself; they only have to differ
// from each other.
constexpr uint32_t kOrderKey = 0x6F726465;  // "orde"
constexpr uint32_t kSeedKey = 0x73656564;   // "seed"

uint32_t low(int64_t value) {
  return static_cast<uint32_t>(value);
}
uint32_t high(int64_t value) {
  return static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32);
}

}  // namespace

QuestionOrder::QuestionOrder(uint32_t run_seed, uint32_t questions, uint32_t per_batch)
    : run_seed_(run_seed),
      per_batch_(per_batch),
      batches_per_epoch_(questions / per_batch),
      order_(questions) {}

std::vector<uint32_t> QuestionOrder::batch(int64_t batch, uint32_t count) {
  const int64_t epoch = batch / batches_per_epoch_;
  if (epoch_ != epoch) {
    std::iota(order_.begin(), order_.end(), 0u);
    // Fisher-Yates; element i takes word i % 4 of block i / 4. The bias of the scaled draw is below
    // questions / 2^32.
    for (uint32_t i = static_cast<uint32_t>(order_.size()) - 1; i > 0; --i) {
      const PhiloxBlock block = philox4x32_10({{i / 4, low(epoch), high(epoch), 0}}, run_seed_, kOrderKey);
      std::swap(order_[i], order_[(uint64_t{block.word[i % 4]} * (uint64_t{i} + 1)) >> 32]);
    }
    epoch_ = epoch;
  }
  std::vector<uint32_t> questions(count);
  size_t place = static_cast<size_t>(batch % batches_per_epoch_) * per_batch_;
  for (uint32_t& question : questions) {
    question = order_[place];
    if (++place == order_.size()) place = 0;
  }
  return questions;
}

uint32_t sampling_seed(uint32_t run_seed, Stage stage, int64_t batch) {
  return philox4x32_10({{low(batch), high(batch), static_cast<uint32_t>(stage), 0}}, run_seed, kSeedKey)
      .word[0];
}

Plan::Plan(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, EvaluationWork work)
    : kind_(parse_reward_kind(spec.reward_kind())),
      divergence_episodes_(spec.divergence_episodes()),
      seed_(spec.seed()),
      train_questions_(spec.task().train().questions()),
      questions_per_episode_(spec.questions_per_episode()),
      divergence_questions_(questions_of_divergence(spec)),
      most_heldout_questions_(spec.task().heldout_questions() == 0 ? 0 : spec.task().heldout().questions()),
      heldout_questions_(spec.task().heldout_questions()),
      preflight_questions_(static_cast<uint32_t>(preflight_questions(spec))),
      preflight_episodes_(preflight_episodes(spec)),
      ignore_preflight_(spec.ignore_preflight()),
      uniform_samples_(even_schedule(spec).samples),
      policy_(std::move(policy)),
      train_(spec.seed(), spec.task().train().questions(), spec.questions_per_episode()),
      preflight_(spec),
      stage_(preflight_episodes_ > 0 ? Stage::kPreflight : Stage::kLearn),
      wanted_(spec.episodes()),
      curve_(kind_) {
  if (!spec.has_evaluation()) return;
  evaluation_.emplace(std::move(work), questions_per_episode(spec));
  stage_ = Stage::kEvaluate;
}

void Plan::asked_before(const PlannedEpisode& episode) {
  if (episode.id != EpisodeId{next_episode_} || episode.stage != Stage::kEvaluate)
    throw std::logic_error(fmt::format("episode {} of stage {} is asked where {} of stage {} is expected",
                                       episode.id.value, name(episode.stage), next_episode_,
                                       name(Stage::kEvaluate)));
  ++next_episode_;
  evaluation_->asked_before(episode);
}

void Plan::begin_evaluation() {
  evaluation_->begin();
  if (evaluation_->done()) stage_ = Stage::kFinished;
}

std::optional<PlannedEpisode> Plan::next() {
  if (evaluation_) {
    std::optional<PlannedEpisode> episode = evaluation_->next();
    if (!episode) return std::nullopt;
    episode->id = next_number();
    episode->stage = stage_;
    episode->kind = kVerifiedKind;
    episode->split = split_of(stage_);
    return episode;
  }
  const bool wanted = stage_ == Stage::kPreflight ? preflight_asked_ < preflight_episodes_
                      : stage_ == Stage::kLearn   ? learned_ + open_ < wanted_
                      : stage_ == Stage::kVerify  ? verification_wants_more()
                                                  : false;
  if (!wanted) return std::nullopt;
  PlannedEpisode episode = stage_ == Stage::kPreflight ? next_preflight()
                           : stage_ == Stage::kLearn   ? next_learning()
                                                       : next_verification();
  episode.id = next_number();
  if (stage_ == Stage::kLearn) proposal_of_[episode.id] = next_proposal_++;
  episode.split = split_of(stage_);
  episode.stage = stage_;
  episode.sampling_seed = sampling_seed(seed_, stage_, episode.group);
  ++open_;
  return episode;
}

// Asks for one proposal at a time, so that the order of calls, which the replay repeats, is the order of
// episodes. The proposals of a group come one after the other, so at most one group is left incomplete.
PlannedEpisode Plan::next_learning() {
  const std::vector<policy::Proposal> proposals = policy_->ask(1);
  if (proposals.size() != 1 || proposals[0].number != next_proposal_) {
    throw std::logic_error("the policy did not answer ask(1) with the next proposal");
  }
  const policy::Proposal& proposal = proposals[0];
  PlannedEpisode episode;
  episode.kind = proposal.reward_kind.value_or(kind_of_group(proposal.group));
  if (!proposal.reward_kind) last_group_ = {proposal.group, episode.kind};
  episode.group = proposal.group;
  episode.samples = proposal.schedule.samples;
  episode.questions = questions_of(proposal, episode.kind);
  episode.policy_version = proposal.policy_version;
  episode.log_prob = proposal.log_prob;
  return episode;
}

std::vector<uint32_t> Plan::questions_of(const policy::Proposal& proposal, RewardKind kind) {
  const uint32_t questions = train_questions_;
  if (!proposal.questions) {
    const uint32_t usual = kind == RewardKind::kDivergence ? divergence_questions_ : questions_per_episode_;
    const int64_t count = proposal.num_questions.value_or(static_cast<int>(usual));
    if (count < 1) throw std::logic_error(fmt::format("the policy wants {} questions", count));
    return train_.batch(proposal.group, std::min(static_cast<uint32_t>(count), questions));
  }
  const std::set<uint32_t> different(proposal.questions->begin(), proposal.questions->end());
  if (different.empty() || different.size() != proposal.questions->size() ||
      *different.rbegin() >= questions) {
    throw std::logic_error(fmt::format("the policy wants the questions {}, expected different ones below {}",
                                       fmt::join(*proposal.questions, ","), questions));
  }
  return *proposal.questions;
}

// The rewards of a group are compared with each other, so it is measured as its first proposal is.
RewardKind Plan::kind_of_group(int64_t group) const {
  if (last_group_ && last_group_->first == group) return last_group_->second;
  return next_kind();
}

RewardKind Plan::next_kind() const {
  if (stage_ != Stage::kLearn) return kVerifiedKind;
  return next_proposal_ < divergence_episodes_ ? RewardKind::kDivergence : kind_;
}

// The questions are the first of the order in which the policy's batches are asked, so that a file that is
// sorted does not make them all alike.
PlannedEpisode Plan::next_preflight() {
  const int64_t batch = preflight_asked_ / kPreflightSchedules;
  const bool dense = preflight_asked_ % kPreflightSchedules == 0;
  const std::vector<uint32_t> all = train_.batch(0, preflight_questions_);
  const size_t first = static_cast<size_t>(batch) * questions_per_episode_;
  const size_t last = std::min<size_t>(first + questions_per_episode_, all.size());
  PlannedEpisode episode;
  episode.kind = kVerifiedKind;
  episode.label = Preflight::kLabels[dense ? 0 : 1];
  episode.group = batch;
  if (!dense) episode.samples = uniform_samples_;
  episode.questions.assign(all.begin() + static_cast<std::ptrdiff_t>(first),
                           all.begin() + static_cast<std::ptrdiff_t>(last));
  episode.policy_version = policy_->version();
  ++preflight_asked_;
  return episode;
}

// All schedules are scored on one batch before the next batch begins, so a verification that is cut short is
// still paired.
PlannedEpisode Plan::next_verification() {
  const int64_t batch = verify_asked_ / kVerifiedSchedules;
  const int64_t schedule = verify_asked_ % kVerifiedSchedules;
  if (schedule == 0) {
    verify_first_ = verify_end_;
    verify_end_ = std::min(verify_first_ + questions_per_episode_, heldout_questions_);
  }
  const VerifiedSchedule& verified = verified_[static_cast<size_t>(schedule)];
  PlannedEpisode episode;
  episode.kind = kVerifiedKind;
  episode.label = verified.label;
  episode.group = batch;
  episode.samples = verified.samples;
  episode.questions.resize(verify_end_ - verify_first_);
  std::iota(episode.questions.begin(), episode.questions.end(), verify_first_);
  episode.policy_version = policy_->version();
  ++verify_asked_;
  return episode;
}

// A batch that has begun is asked of all schedules, so that it stays paired.
bool Plan::verification_wants_more() const {
  return verify_asked_ % kVerifiedSchedules != 0 || verify_end_ < heldout_questions_;
}

int64_t Plan::unasked_verification_episodes() const {
  const int64_t begun = verify_asked_ % kVerifiedSchedules;
  const int64_t batches =
      (int64_t{heldout_questions_} - verify_end_ + questions_per_episode_ - 1) / questions_per_episode_;
  return (begun == 0 ? 0 : kVerifiedSchedules - begun) + kVerifiedSchedules * batches;
}

bool Plan::tell(const PlannedEpisode& episode, std::span<const QuestionResult> results, const Work& work) {
  bool used = true;
  if (evaluation_) {
    evaluation_->tell(episode, results);
    if (evaluation_->done()) stage_ = Stage::kFinished;
    return true;
  }
  if (episode.stage == Stage::kPreflight) {
    preflight_.add(episode.label, results, work);
  } else if (episode.stage == Stage::kLearn) {
    const double reward = mean_score(results);
    const int64_t proposal = proposal_of_.extract(episode.id).mapped();
    switch (policy_->tell({proposal, reward, results, episode.kind})) {
      case policy::TellResult::kLearned:
        break;
      case policy::TellResult::kStale:
        used = false;
        break;
      case policy::TellResult::kDuplicate:
      case policy::TellResult::kUnknown:
        throw std::logic_error("the policy does not know an open episode as open");
    }
    if (used) ++learned_;
    // Means of different measures say nothing.
    if (used && episode.kind == kind_) {
      curve_.add(reward);
      recent_rewards_.push_back(reward);
      if (recent_rewards_.size() > kRecentRewards) recent_rewards_.pop_front();
    }
  } else {
    const auto verified = std::ranges::find(verified_, episode.label, &VerifiedSchedule::label);
    verified->answered += std::ssize(results);
    for (const QuestionResult& result : results) {
      verified->right += result.score == 1;
      verified->score_sum += result.score;
    }
  }
  close_episode();
  return used;
}

void Plan::give_up(const PlannedEpisode& episode) {
  if (evaluation_) {
    evaluation_->give_up(episode);
    if (evaluation_->done()) stage_ = Stage::kFinished;
    return;
  }
  if (episode.stage == Stage::kLearn) policy_->give_up(proposal_of_.extract(episode.id).mapped());
  close_episode();
}

void Plan::close_episode() {
  --open_;
  if (stage_ == Stage::kPreflight) {
    if (++preflight_closed_ < preflight_episodes_) return;
    const bool learns = ignore_preflight_ || preflight_.stop_reason().empty();
    stage_ = learns ? Stage::kLearn : Stage::kFinished;
    if (learns) end_learning_when_done();
  } else if (stage_ == Stage::kLearn) {
    end_learning_when_done();
  } else {
    end_verification_when_done();
  }
}

bool Plan::can_learn_on(int64_t episodes) const {
  return (stage_ == Stage::kFinished || stage_ == Stage::kVerify) &&
         (ignore_preflight_ || preflight_.stop_reason().empty()) && episodes > learned_;
}

void Plan::want(int64_t episodes) {
  if (can_learn_on(episodes)) {
    if (open_ > 0) throw std::logic_error("a run learns on while episodes of its verification are open");
    stage_ = Stage::kLearn;
    verify_asked_ = verify_first_ = verify_end_ = 0;
    verified_.clear();
  }
  if (stage_ != Stage::kLearn && stage_ != Stage::kPreflight)
    throw std::logic_error("the number of learning episodes changes after the learning stage");
  wanted_ = episodes;
  if (stage_ == Stage::kLearn) end_learning_when_done();
}

std::string Plan::why_not_verify(int64_t heldout_questions) const {
  if (most_heldout_questions_ == 0) return "the run has no held-out file";
  if (heldout_questions < 1 || heldout_questions > most_heldout_questions_) {
    return fmt::format("heldout-questions is {}, 1 to {}, which the held-out file has, is expected",
                       heldout_questions, most_heldout_questions_);
  }
  if (stage_ != Stage::kFinished) return "";
  if (verified_.empty()) return "the run ended without a verification, so there is nothing to add to";
  if (heldout_questions > verify_end_) return "";
  return fmt::format(
      "the run is finished and verified on {} questions; more than that is expected, {} at most", verify_end_,
      most_heldout_questions_);
}

void Plan::verify_on(int64_t heldout_questions) {
  if (const std::string reason = why_not_verify(heldout_questions); !reason.empty())
    throw std::logic_error(reason);
  heldout_questions_ = std::max(static_cast<uint32_t>(heldout_questions), verify_end_);
  if (stage_ == Stage::kFinished) stage_ = Stage::kVerify;
  if (stage_ == Stage::kVerify) end_verification_when_done();
}

void Plan::end_verification_when_done() {
  if (open_ == 0 && !verification_wants_more()) stage_ = Stage::kFinished;
}

void Plan::end_learning_when_done() {
  if (learned_ < wanted_ || open_ > 0) return;
  stage_ = heldout_questions_ > 0 ? Stage::kVerify : Stage::kFinished;
  if (stage_ == Stage::kFinished) return;
  verified_ = {{"uniform", uniform_samples_}, {"learned", policy_->recommend().samples}, {"dense", {}}};
}

std::optional<int64_t> Plan::useful_at_once() const {
  return stage_ == Stage::kLearn ? policy_->useful_in_flight() : std::nullopt;
}

int64_t Plan::remaining() const {
  if (stage_ == Stage::kFinished) return 0;
  if (evaluation_) return evaluation_->remaining();
  const int64_t before = stage_ == Stage::kPreflight ? preflight_episodes_ - preflight_closed_ : 0;
  const int64_t learning = stage_ == Stage::kPreflight ? wanted_
                           : stage_ == Stage::kLearn   ? std::max(wanted_ - learned_, open_)
                                                       : 0;
  const int64_t verifying = stage_ == Stage::kVerify ? open_ : 0;
  return before + learning + verifying + unasked_verification_episodes();
}

double Plan::mean_reward_recent() const {
  if (recent_rewards_.empty()) return 0;
  return std::accumulate(recent_rewards_.begin(), recent_rewards_.end(), 0.0) /
         static_cast<double>(recent_rewards_.size());
}

}  // namespace allot::aggregator
