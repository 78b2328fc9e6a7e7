// How a model's divergence from exact attention depends on the schedule, fitted to measurements: each layer
// adds a term that falls as a power of its samples. Fitted in context, to schedules in which all layers
// differ at once, since a layer's effect beside exact layers is not its effect beside sampled ones. No I/O.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/layer_costs.h"
#include "policy/schedule.h"

namespace allot::policy {

// What one sample more or less in a layer does to a schedule: changes of -log(divergence), so that 0.1 is a
// divergence lower by 10 %.
struct LayerSensitivity {
  double one_more = 0;
  double one_fewer = 0;  // below 0; -infinity where there is no sample to take
  double error = 0;      // standard error of one_more, from the fit's covariance
};

class DivergenceModel {
 public:
  // `layers` >= 1; `samples`, > 0, is where the layers' prior is flat: the mean budget that is asked about.
  DivergenceModel(int layers, double samples);

  // Measurements that share texts and draws: what these have in common is taken out by a term of the batch.
  // Throws InvalidArgument, naming the place and the values, when the numbers of schedules and divergences
  // differ, a schedule has another number of layers or an entry below 0, or a divergence is not finite and
  // above 0.
  void add(std::span<const Schedule> schedules, std::span<const double> divergences);

  // Fits to all measurements; those far from `centre` ([layers], samples) count less, since the power law
  // holds near a place only. Deterministic. Requires a measurement.
  void fit(std::span<const double> centre);

  // Log of the divergence that the fit expects, for the mean of the batches.
  double log_divergence(const Schedule& schedule) const;
  // Standard deviation of a measurement near the centre around the fit, of the log.
  double residual() const { return residual_; }
  int64_t measurements() const { return static_cast<int64_t>(points_.size()); }
  LayerSensitivity sensitivity(const Schedule& schedule, int layer) const;

  // The schedule of least divergence among those with least[l] <= samples[l] <= most[l] and that total, which
  // lies between the sums of the bounds. Exact: the terms are convex, so that each sample goes to the layer
  // that gains most. Ties go to the lower layer.
  Schedule best(int64_t total, std::span<const int32_t> least, std::span<const int32_t> most) const;
  // The same without bounds but the floor.
  Schedule best(int64_t total, int32_t floor) const;
  // The layers' terms, for other totals. Requires a measurement.
  LayerCosts costs() const;

 private:
  struct Point {
    std::vector<double> logs;  // of the samples over samples_, [layers]
    double value = 0;          // log of the divergence
    size_t batch = 0;
  };
  // The divergence of a schedule is exp(level + offset of its batch) times the mean of the layers' terms
  // exp(scale) * (samples / samples_) ^ -exponent, to a power: errors of layers may add to more than their
  // sum, and a divergence has an upper end.
  struct Parameters {
    double level = 0;
    double log_power = 0;
    std::vector<double> scales;     // [layers]
    std::vector<double> exponents;  // [layers]
    std::vector<double> offsets;    // [batches]
  };

  // The log that is expected of a point, and its derivatives by scales, exponents and log_power.
  double expected(const Point& point, std::vector<double>* gradient) const;
  // How near each measurement is to the centre, from 0 to 1.
  std::vector<double> nearness(std::span<const double> centre) const;
  // What fit() minimises.
  double cost(std::span<const double> nearness) const;
  // Moves the parameters by a damped step of Gauss and Newton.
  struct Equations;
  Equations equations(std::span<const double> nearness) const;
  void move(const Equations& equations, std::span<const double> step);
  double term(size_t layer, double samples) const;
  size_t layers() const { return parameters_.scales.size(); }
  size_t shaping() const { return 2 * layers() + 1; }  // scales, exponents and log_power

  double samples_;
  std::vector<Point> points_;
  Parameters parameters_;
  double residual_;
  std::vector<double> covariance_;  // [shaping(), shaping()]; empty before fit()
};

}  // namespace allot::policy
