#include "policy/rehearsal.h"

#include <algorithm>
#include <utility>

#include "policy/draws.h"

namespace allot::policy {
namespace {

constexpr uint32_t kNumQuestions = 7473;  // as many as GSM8K's training set has

// Streams of a rehearsal, apart from the learner's own draws and from those of the models of accuracy.
enum class Stream : uint32_t { kQuestions = 1, kAnswers, kArrival };

DrawStream stream(Stream which, uint64_t seed, uint64_t number) {
  return {seed, number,
          static_cast<DrawPurpose>(static_cast<uint32_t>(DrawPurpose::kSimulation) +
                                   static_cast<uint32_t>(which))};
}

int questions_of(const Proposal& proposal, const RehearsalOptions& options) {
  if (proposal.questions) return static_cast<int>(proposal.questions->size());
  return std::min(proposal.num_questions.value_or(options.questions_per_episode),
                  static_cast<int>(kNumQuestions));
}

std::vector<QuestionResult> answers_to(const Proposal& proposal, const Ground& ground,
                                       const RehearsalOptions& options) {
  DrawStream questions = stream(Stream::kQuestions, options.seed, static_cast<uint64_t>(proposal.group));
  DrawStream answers = stream(Stream::kAnswers, options.seed, static_cast<uint64_t>(proposal.number));
  std::vector<QuestionResult> results;
  for (int place = 0; place < questions_of(proposal, options); ++place) {
    const uint32_t question = proposal.questions ? (*proposal.questions)[static_cast<size_t>(place)]
                                                 : questions.below(kNumQuestions);
    const bool right = answers.uniform() < ground.chance(proposal.schedule, question);
    results.push_back({.question = question, .score = right ? 1.0 : 0.0});
  }
  return results;
}

}  // namespace

std::vector<double> rehearse(Policy& policy, const Ground& ground, const RehearsalOptions& options) {
  std::vector<double> curve;
  std::vector<Proposal> out;
  DrawStream arrival = stream(Stream::kArrival, options.seed, 0);
  const auto of_episodes = [&](int episodes) { return int64_t{episodes} * options.questions_per_episode; };
  int64_t asked = 0;  // questions of episodes that have ended
  while (asked < of_episodes(options.episodes)) {
    const int free = options.in_flight - static_cast<int>(out.size());
    for (Proposal& proposal : policy.ask(free)) out.push_back(std::move(proposal));
    std::swap(out[arrival.below(static_cast<uint32_t>(out.size()))], out.back());
    const Proposal proposal = std::move(out.back());
    out.pop_back();
    asked += questions_of(proposal, options);
    if (arrival.uniform() < options.loss) {
      policy.give_up(proposal.number);
    } else if (proposal.reward_kind.value_or(ground.kind) == RewardKind::kDivergence) {
      policy.tell(
          {.number = proposal.number,
           .reward = ground.divergence(proposal.schedule, proposal.group, questions_of(proposal, options)),
           .kind = RewardKind::kDivergence});
    } else {
      const std::vector<QuestionResult> results = answers_to(proposal, ground, options);
      policy.tell({.number = proposal.number, .reward = mean_score(results), .results = results});
    }
    while (curve.size() < options.checkpoints.size() &&
           asked >= of_episodes(options.checkpoints[curve.size()])) {
      curve.push_back(ground.accuracy(policy.recommend()));
    }
  }
  return curve;
}

}  // namespace allot::policy
