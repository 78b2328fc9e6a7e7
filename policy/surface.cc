#include "policy/surface.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "policy/draws.h"

namespace allot::policy {
namespace {

// Streams of the questions, apart from those of rehearsals (policy/rehearsal.cc).
enum class QuestionStream : uint32_t { kDifficulty = 16, kType };

DrawStream question_stream(QuestionStream which, uint32_t question) {
  return {0, question,
          static_cast<DrawPurpose>(static_cast<uint32_t>(DrawPurpose::kSimulation) +
                                   static_cast<uint32_t>(which))};
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

}  // namespace

double Surface::chance(const Schedule& schedule, uint32_t question) const {
  double drawn = question_stream(QuestionStream::kType, question).uniform();
  const QuestionType* type = &types.front();
  for (const QuestionType& one : types) {
    type = &one;
    if ((drawn -= one.share) < 0) break;
  }
  DrawStream difficulty = question_stream(QuestionStream::kDifficulty, question);
  return chance_at(*this, penalty(*type, schedule), standard_normal(difficulty));
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

}  // namespace allot::policy
