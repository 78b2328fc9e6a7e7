#include "policy/divergence_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "policy/draws.h"
#include "policy/multinomial.h"

namespace allot::policy {
namespace {

// The logs of the samples above the floor are changed by this much at the first step, and by the least at
// the last ones: at first to find out what matters, then to tell neighbours apart.
constexpr double kFirstWidth = 1.25;
constexpr double kLastWidth = 0.5;
// The share of the way to the model's best schedule, and how far a step goes at most, both of logs.
constexpr double kStride = 0.5;
constexpr double kLongestStep = 0.7;
// A layer's samples above the floor are not less than this at the centre, else no perturbation would try one
// more.
constexpr double kLeastAbove = 0.4;
// The first share of the steps is not in the mean.
constexpr double kEarly = 0.4;

// Integers that differ from `amounts` by less than 1 and have their sum, a whole number. Each is in the mean
// what it stands for: the cumulative sums are cut at whole numbers behind a common uniform offset.
std::vector<int32_t> round_at_random(std::span<const double> amounts, DrawStream stream) {
  const double offset = stream.uniform();
  std::vector<int32_t> rounded;
  double sum = 0;
  double before = 0;
  const double total = std::round(std::accumulate(amounts.begin(), amounts.end(), 0.0));
  for (size_t i = 0; i < amounts.size(); ++i) {
    sum += amounts[i];
    const double after = i + 1 == amounts.size() ? total : std::min(std::floor(sum + offset), total);
    rounded.push_back(static_cast<int32_t>(after - before));
    before = after;
  }
  return rounded;
}

}  // namespace

Schedule best_within(const DivergenceModel& model, int64_t total, int32_t floor, const Limits& limits) {
  return limits.empty() ? model.best(total, floor) : model.best(total, limits.least, limits.most);
}

DivergenceSearch::DivergenceSearch(const DivergenceSearchOptions& options, DivergenceModel* model,
                                   const std::optional<Schedule>& start)
    : options_(options), model_(model) {
  if (options.steps < 1 || options.pairs < 1)
    throw InvalidArgument("a search of " + std::to_string(options.steps) + " steps of " +
                          std::to_string(options.pairs) + " pairs; expected at least 1 of each");
  start_ = start.value_or(even());
  check_schedule(start_, options.layers, options.floor, options.total);
  check_limits(start_, options.limits);
  for (const int32_t samples : start_.samples) logs_.push_back(log_above(samples - options.floor));
  sum_of_logs_.resize(logs_.size());
  // Where nothing is to be spread there is one schedule.
  if (spread() == 0) step_ = options_.steps;
}

void DivergenceSearch::bound(const Limits& limits) {
  options_.limits = limits;
  start_ = kept(start_, options_.floor, limits);
}

double DivergenceSearch::spread() const {
  return static_cast<double>(options_.total - int64_t{options_.layers} * options_.floor);
}

double DivergenceSearch::log_above(double samples) const {
  return std::log(std::max(samples, std::min(kLeastAbove, 0.5 * spread() / options_.layers)));
}

std::vector<double> DivergenceSearch::amounts(std::span<const double> logs) const {
  std::vector<double> amounts = softmax(logs);
  for (double& amount : amounts) amount *= spread();
  return amounts;
}

std::vector<Schedule> DivergenceSearch::batch(int batch) const {
  PerturbationDirections directions(options_.layers, options_.seed);
  const double done = options_.steps == 1 ? 0 : static_cast<double>(batch) / (options_.steps - 1);
  const double width = kFirstWidth * std::pow(kLastWidth / kFirstWidth, done);
  std::vector<Schedule> schedules;
  for (int pair = 0; pair < options_.pairs; ++pair) {
    const int64_t number = int64_t{batch} * options_.pairs + pair;
    const std::vector<double> direction = directions.of(number);
    for (const int sign : {1, -1}) {
      std::vector<double> logs = logs_;
      for (size_t layer = 0; layer < logs.size(); ++layer) logs[layer] += sign * width * direction[layer];
      const uint64_t draw = 2 * static_cast<uint64_t>(number) + (sign > 0 ? 0 : 1);
      Schedule schedule{
          round_at_random(amounts(logs), {options_.seed, draw, draw_purpose("divergence-search")})};
      for (int32_t& samples : schedule.samples) samples += options_.floor;
      schedules.push_back(kept(schedule, options_.floor, options_.limits));
    }
  }
  return schedules;
}

void DivergenceSearch::tell(std::span<const Schedule> schedules, std::span<const double> divergences) {
  if (!schedules.empty()) {
    model_->add(schedules, divergences);
    std::vector<double> centre = amounts(logs_);
    for (double& samples : centre) samples += options_.floor;
    model_->fit(centre);
    move();
    moved_ = true;
  }
  ++step_;
  if (step_ <= kEarly * options_.steps) return;
  for (size_t layer = 0; layer < logs_.size(); ++layer) sum_of_logs_[layer] += logs_[layer];
  ++later_steps_;
}

void DivergenceSearch::move() {
  const std::vector<double> centre = amounts(logs_);
  std::vector<int32_t> least, most;
  for (const double above : centre) {
    const double low = std::floor(above * std::exp(-kLongestStep));
    const double high = std::ceil(above * std::exp(kLongestStep));
    least.push_back(options_.floor + static_cast<int32_t>(low));
    most.push_back(options_.floor + static_cast<int32_t>(std::max(high, std::floor(above) + 1)));
  }
  const Schedule goal = best_between(std::move(least), std::move(most));
  for (size_t layer = 0; layer < logs_.size(); ++layer) {
    const double here = std::log(centre[layer]);
    logs_[layer] = here + kStride * (log_above(goal.samples[layer] - options_.floor) - here);
  }
  // Sums that are off are put right by softmax; a layer out of reach by that is brought back.
  const std::vector<double> moved = amounts(logs_);
  for (size_t layer = 0; layer < logs_.size(); ++layer) logs_[layer] = log_above(moved[layer]);
}

Schedule DivergenceSearch::dealt(std::span<const double> shares) const {
  return apportion(shares, options_.total, options_.floor, options_.limits);
}

Schedule DivergenceSearch::even() const {
  return dealt(std::vector<double>(static_cast<size_t>(options_.layers), 1.0));
}

Schedule DivergenceSearch::best() const {
  return best_within(*model_, options_.total, options_.floor, options_.limits);
}

Schedule DivergenceSearch::best_between(std::vector<int32_t> least, std::vector<int32_t> most) const {
  const Limits& limits = options_.limits;
  int64_t lowest = 0, highest = 0;
  for (size_t layer = 0; layer < limits.least.size(); ++layer) {
    lowest += least[layer] = std::clamp(least[layer], limits.least[layer], limits.most[layer]);
    highest += most[layer] = std::clamp(most[layer], limits.least[layer], limits.most[layer]);
  }
  // The centre may lie so far outside the limits that no schedule within them is near to it.
  if (!limits.empty() && (lowest > options_.total || highest < options_.total)) return best();
  return model_->best(options_.total, least, most);
}

Schedule DivergenceSearch::centre() const {
  return !moved_ ? start_ : dealt(softmax(logs_));
}

std::vector<Schedule> DivergenceSearch::candidates() const {
  std::vector<Schedule> found = {even()};
  const auto add = [&](Schedule schedule) {
    if (std::ranges::find(found, schedule) == found.end()) found.push_back(std::move(schedule));
  };
  add(start_);
  if (later_steps_ > 0) {
    std::vector<double> mean = sum_of_logs_;
    for (double& log : mean) log /= later_steps_;
    add(dealt(softmax(mean)));
  }
  if (step_ > 0 && spread() > 0) add(best());
  return found;
}

}  // namespace allot::policy
