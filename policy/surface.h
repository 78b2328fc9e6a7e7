// Surfaces with a known optimum, on which learners are rehearsed: the accuracy of a schedule as a function
// that costs microseconds. Families of random instances cover what is known of real models (a few layers
// matter most) and what may surprise a learner (steps, question types, layers that are all alike). They model
// no network; they rank learners.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

struct Surface {
  // Questions of one type share what each layer costs them.
  struct QuestionType {
    double share = 1;                            // of the questions; the shares sum to 1
    std::vector<std::vector<double>> penalties;  // [layers][total + 1], falling: by samples of the layer
  };
  std::vector<QuestionType> types;
  double dense = 1;            // the most that any schedule reaches
  double offset = 0;           // of the logit, or of the log of the exponent
  double question_spread = 1;  // standard deviation of the questions' difficulty, in units of the offset
  bool exponential = false;    // see chance()

  // With p the sum of the penalties and z the question's difficulty, standard normal and, as its type, a
  // function of its number alone: dense * sigmoid(offset - question_spread * z - p), or, when exponential,
  // dense * exp(-p * exp(question_spread * z - offset)).
  double chance(const Schedule& schedule, uint32_t question) const;
  // Expected accuracy over all questions, by quadrature over z.
  double accuracy(const Schedule& schedule) const;
};

// A surface with the two schedules that the share of the gap refers to.
struct RatedSurface {
  Surface surface;
  int layers = 0;
  int64_t total = 0;
  double uniform_accuracy = 0;
  double best_accuracy = 0;  // of `best`: exact with one type, else where no exchange of samples helps

  Schedule best;

  // (accuracy - uniform) / (best - uniform). Undefined where all layers are equal.
  double share_of_gap(double accuracy) const;
};

struct SurfaceFamily {
  std::string_view name;
  std::string_view summary;  // one line without a full stop
  bool has_gap = true;       // false: uniform is the best schedule
  // An instance is a function of its number alone: 28 layers of 8 samples, uniform at 5, 30 or 65 % in turn.
  RatedSurface (*make)(uint64_t instance) = nullptr;
};

std::span<const SurfaceFamily> surface_families();
// The family of that name; null when there is none.
const SurfaceFamily* find_surface_family(std::string_view name);

}  // namespace allot::policy
