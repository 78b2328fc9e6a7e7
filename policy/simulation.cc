#include "policy/simulation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "policy/draws.h"

namespace allot::policy {
namespace {

constexpr double kSamplesOfAnEmptyLayer = 0.25;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// E[sigmoid(x - spread * z)], z standard normal.
double mean_sigmoid(double x, double spread) {
  double sum = 0;
  double weights = 0;
  for (int step = -60; step <= 60; ++step) {
    const double z = 0.1 * step;
    const double weight = std::exp(-0.5 * z * z);
    sum += weight * sigmoid(x - spread * z);
    weights += weight;
  }
  return sum / weights;
}

// The x with mean_sigmoid(x, spread) = mean, by bisection: mean_sigmoid rises with x.
double inverse_mean_sigmoid(double mean, double spread) {
  double low = -60;
  double high = 60;
  for (int round = 0; round < 100; ++round) {
    const double middle = (low + high) / 2;
    (mean_sigmoid(middle, spread) < mean ? low : high) = middle;
  }
  return (low + high) / 2;
}

// DeepSeek 7B under one-hot ablation: layers 12 to 18 collapse, the first one suffers, most
// others barely notice.
std::vector<double> deepseek_sensitivities() {
  std::vector<double> sensitivities(28, 0.02);
  sensitivities[0] = 0.5;
  for (int layer = 10; layer < 12; ++layer) sensitivities[layer] = 0.1;
  for (int layer = 12; layer < 19; ++layer) sensitivities[layer] = 1;
  for (int layer = 19; layer < 21; ++layer) sensitivities[layer] = 0.1;
  return sensitivities;
}

// A small 28-layer model: early layers carry nearly everything.
std::vector<double> early_sensitivities() {
  std::vector<double> sensitivities(28, 0.02);
  sensitivities[0] = 4;
  for (int layer = 1; layer < 4; ++layer) sensitivities[layer] = 0.5;
  return sensitivities;
}

}  // namespace

double Landscape::noise(const Schedule& schedule) const {
  double sum = 0;
  for (size_t layer = 0; layer < sensitivities.size(); ++layer) {
    sum += sensitivities[layer] / std::max<double>(schedule.samples[layer], kSamplesOfAnEmptyLayer);
  }
  return sum;
}

double Landscape::chance(const Schedule& schedule, uint32_t question) const {
  DrawStream draws(0, question, DrawPurpose::kSimulation);
  const double difficulty = question_spread * standard_normal(draws);
  return dense * sigmoid(steepness * (midpoint - std::log(noise(schedule))) - difficulty);
}

double Landscape::accuracy(const Schedule& schedule) const {
  return dense * mean_sigmoid(steepness * (midpoint - std::log(noise(schedule))), question_spread);
}

Schedule Landscape::best(int64_t total, int32_t floor) const {
  Schedule schedule = uniform_schedule(static_cast<int>(sensitivities.size()), std::max(floor, 1));
  const auto benefit = [&](size_t layer) {
    const double samples = schedule.samples[layer];
    return sensitivities[layer] / (samples * (samples + 1));
  };
  for (int64_t left = total - schedule.total(); left > 0; --left) {
    size_t winner = 0;
    for (size_t layer = 1; layer < sensitivities.size(); ++layer) {
      if (benefit(layer) > benefit(winner)) winner = layer;
    }
    ++schedule.samples[winner];
  }
  return schedule;
}

Landscape calibrate(const Calibration& calibration) {
  const auto& [sensitivities, total, floor, dense, uniform, best, spread] = calibration;
  if (!(0 < uniform && uniform < best && best < dense)) {
    throw InvalidArgument("calibrate: uniform " + std::to_string(uniform) + ", best " + std::to_string(best) +
                          ", dense " + std::to_string(dense) + "; expected 0 < uniform < best < dense");
  }
  Landscape landscape{.sensitivities = sensitivities, .dense = dense, .question_spread = spread};
  const Schedule even = even_schedule(static_cast<int>(sensitivities.size()), total, floor);
  const double uniform_noise = std::log(landscape.noise(even));
  const double best_noise = std::log(landscape.noise(landscape.best(total, floor)));
  const double uniform_x = inverse_mean_sigmoid(uniform / dense, spread);
  const double best_x = inverse_mean_sigmoid(best / dense, spread);
  landscape.steepness = (best_x - uniform_x) / (uniform_noise - best_noise);
  landscape.midpoint = uniform_noise + uniform_x / landscape.steepness;
  return landscape;
}

Landscape paper_landscape() {
  return calibrate({.sensitivities = deepseek_sensitivities(),
                    .total = 224,
                    .dense = 0.8875,
                    .uniform_accuracy = 0.5246,
                    .best_accuracy = 0.775,
                    .question_spread = 1.5});
}

Landscape steep_landscape() {
  return calibrate({.sensitivities = early_sensitivities(),
                    .total = 224,
                    .dense = 0.99,
                    .uniform_accuracy = 0.17,
                    .best_accuracy = 0.75,
                    .question_spread = 1.5});
}

Landscape tiny_landscape() {
  return calibrate({.sensitivities = {1, 0.016, 0.014, 0.005, 0.006, 0.003, 0.004, 0.006},
                    .total = 64,
                    .dense = 0.999,
                    .uniform_accuracy = 0.14,
                    .best_accuracy = 0.95,
                    .question_spread = 1});
}

std::span<const NamedLandscape> landscapes() {
  static constexpr NamedLandscape kLandscapes[] = {
      {"published", paper_landscape}, {"steep", steep_landscape}, {"tiny", tiny_landscape}};
  return kLandscapes;
}

}  // namespace allot::policy
