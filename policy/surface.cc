#include "policy/surface.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>

#include "policy/draws.h"

namespace allot::policy {
namespace {

constexpr uint32_t kNumQuestions = 7473;  // as many as GSM8K's training set has

// Streams of a rehearsal, apart from the learner's own draws.
enum class Stream : uint32_t { kDifficulty = 16, kType, kQuestions, kAnswers, kArrival };

DrawStream stream(Stream which, uint64_t seed, uint64_t number) {
  return {seed, number,
          static_cast<DrawPurpose>(static_cast<uint32_t>(DrawPurpose::kSimulation) +
                                   static_cast<uint32_t>(which))};
}

// Standard normal by Box and Muller.
double normal(DrawStream draws) {
  const double radius = std::sqrt(-2 * std::log1p(-draws.uniform()));
  return radius * std::cos(2 * std::numbers::pi * draws.uniform());
}

double chance_at(const Surface& surface, double penalty, double difficulty) {
  const double shift = surface.question_spread * difficulty - surface.offset;
  if (surface.exponential) return surface.dense * std::exp(-penalty * std::exp(shift));
  return surface.dense / (1 + std::exp(shift + penalty));
}

double penalty(const Surface::QuestionType& type, const Schedule& schedule) {
  double sum = 0;
  for (size_t layer = 0; layer < type.penalties.size(); ++layer) {
    sum += type.penalties[layer][static_cast<size_t>(schedule.samples[layer])];
  }
  return sum;
}

// The steps of the quadrature over a standard normal, with weights that sum to 1.
struct Quadrature {
  static constexpr int kSteps = 41;
  std::array<double, kSteps> at{};
  std::array<double, kSteps> weight{};

  Quadrature() {
    double sum = 0;
    for (size_t step = 0; step < kSteps; ++step) {
      at[step] = 0.2 * (static_cast<double>(step) - kSteps / 2);
      weight[step] = std::exp(-0.5 * at[step] * at[step]);
      sum += weight[step];
    }
    for (double& one : weight) one /= sum;
  }
};

const Quadrature& quadrature() {
  static const Quadrature made;
  return made;
}

struct Answers {
  double reward = 0;
  std::vector<QuestionResult> results = {};
};

Answers score(const Surface& surface, const Proposal& proposal, const RehearsalOptions& options) {
  DrawStream questions = stream(Stream::kQuestions, options.seed, static_cast<uint64_t>(proposal.group));
  DrawStream answers = stream(Stream::kAnswers, options.seed, static_cast<uint64_t>(proposal.number));
  Answers all;
  const int count = proposal.questions ? static_cast<int>(proposal.questions->size())
                                       : proposal.num_questions.value_or(options.questions_per_episode);
  for (int place = 0; place < count; ++place) {
    const uint32_t question = proposal.questions ? (*proposal.questions)[static_cast<size_t>(place)]
                                                 : questions.below(kNumQuestions);
    const bool right = answers.uniform() < surface.chance(proposal.schedule, question);
    all.results.push_back({.question = question, .score = right ? 1.0 : 0.0});
  }
  all.reward = mean_score(all.results);
  return all;
}

}  // namespace

double Surface::chance(const Schedule& schedule, uint32_t question) const {
  double drawn = stream(Stream::kType, 0, question).uniform();
  const QuestionType* type = &types.front();
  for (const QuestionType& one : types) {
    type = &one;
    if ((drawn -= one.share) < 0) break;
  }
  return chance_at(*this, penalty(*type, schedule), normal(stream(Stream::kDifficulty, 0, question)));
}

double Surface::accuracy(const Schedule& schedule) const {
  double sum = 0;
  for (const QuestionType& type : types) {
    const double of_type = penalty(type, schedule);
    for (size_t step = 0; step < Quadrature::kSteps; ++step) {
      sum += type.share * quadrature().weight[step] * chance_at(*this, of_type, quadrature().at[step]);
    }
  }
  return sum;
}

double RatedSurface::share_of_gap(double accuracy) const {
  return (accuracy - uniform_accuracy) / (best_accuracy - uniform_accuracy);
}

std::vector<double> rehearse(Policy& policy, const Surface& surface, const RehearsalOptions& options) {
  std::vector<double> curve;
  std::vector<Proposal> out;
  DrawStream arrival = stream(Stream::kArrival, options.seed, 0);
  for (int episode = 1; episode <= options.episodes; ++episode) {
    const int free = options.in_flight - static_cast<int>(out.size());
    for (Proposal& proposal : policy.ask(free)) out.push_back(std::move(proposal));
    const auto place = std::next(out.begin(), arrival.below(static_cast<uint32_t>(out.size())));
    const Proposal proposal = std::move(*place);
    out.erase(place);
    if (arrival.uniform() < options.loss) {
      policy.give_up(proposal.number);
    } else {
      const Answers answers = score(surface, proposal, options);
      policy.tell({.number = proposal.number, .reward = answers.reward, .results = answers.results});
    }
    if (std::ranges::binary_search(options.checkpoints, episode)) {
      curve.push_back(surface.accuracy(policy.recommend()));
    }
  }
  return curve;
}

}  // namespace allot::policy
