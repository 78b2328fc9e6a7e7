// Calibration: schedules learned from the divergence of sampled from exact next-token distributions alone, on
// given texts (teacher-forced). No replies, no grades. No model here: the caller measures.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "evaluation/fidelity.h"
#include "policy/divergence_model.h"
#include "policy/schedule.h"

namespace allot::evaluation {

struct CalibrationOptions {
  int layers = 0;
  int32_t floor = 1;
  uint64_t seed = 0;
  int steps = 40;           // of a total, each a batch of texts
  int pairs = 8;            // of schedules in a step, mirrored around the centre
  int texts_per_step = 16;  // at most
  int check_texts = 64;     // at most: set aside for the choice at the end, where there are enough texts
  // Of a layer on average, the most that least_total() tries: more than a text has keys are of no use.
  int32_t most_samples = 1024;
};

// Measures texts under schedules: what text texts[i] gives under schedules[j] at [j * texts + i]. The
// sampling seed is the second half of every draw's key: schedules of one call have common draws.
using MeasureFidelity = std::function<std::vector<TextFidelity>(
    std::span<const size_t> texts, std::span<const policy::Schedule> schedules, uint32_t sampling_seed)>;

// Mean divergence over the positions of the texts that were set aside, nats.
struct Divergence {
  double mean = 0;
  double standard_error = 0;  // from the spread of the texts; 0 where there is one
  friend bool operator==(const Divergence&, const Divergence&) = default;
};

// The divergence of a schedule on texts: the mean over their positions, at least what is more than rounding.
double mean_divergence(std::span<const TextFidelity> texts);

struct Calibration {
  policy::Schedule schedule = {};  // the best that was found; the even one where none is better
  Divergence uniform = {};         // of the even schedule
  Divergence learned = {};         // of `schedule`, on the same texts with the same draws
  double top1_uniform = 0;         // share of positions whose most likely token is that of exact attention
  double top1_learned = 0;
  // Of learned to uniform, with a 95 % interval from the spread of the texts.
  double ratio = 1;
  double ratio_low = 1;
  double ratio_high = 1;
  std::vector<policy::LayerSensitivity> sensitivities = {};  // at `schedule`, by the fit; [layers]
  std::optional<policy::LayerCosts> costs = {};              // of the fit; at the total they give `schedule`
  double residual = 0;       // standard deviation of a measurement's log around the fit
  int64_t measurements = 0;  // schedules, of this total
  int64_t texts = 0;         // measured at the end
  int64_t positions = 0;     // of these
  bool other_texts = false;  // that the search did not use
};

// Searches the schedule of `total` samples with the least divergence on `texts` texts, numbered from 0.
// The last texts are set aside, at most half of them; the even schedule, the mean of the search and its
// model's best are measured on these with fresh draws, and the winner once more, beside the even schedule,
// with others. `model` keeps what is learned from one total to the next. Throws InvalidArgument for options
// that do not fit, and what `measure` throws.
Calibration calibrate(int64_t total, size_t texts, const CalibrationOptions& options,
                      const MeasureFidelity& measure, policy::DivergenceModel* model,
                      const std::function<void(int64_t done, int64_t wanted)>& progress);

// Looks for the least total whose learned divergence is at most `margin` nats. `calibrate_total` measures a
// total and makes `model` know of it: first `first`, then where the model expects the margin, between the
// totals that are known to be too small and to be enough, until these are within 2 % of each other,
// most_samples are too few, or after kMostTotals. Returns the least total that was enough; nothing where none
// was. Throws InvalidArgument for a margin that is not above 0 and for a first total below the floors of the
// layers.
inline constexpr int kMostTotals = 8;
std::optional<int64_t> least_total(double margin, int64_t first, const CalibrationOptions& options,
                                   const std::function<Calibration(int64_t total)>& calibrate_total,
                                   const policy::DivergenceModel& model);

// {"samples", "total", "texts", "positions", "other_texts", "uniform": {"divergence", "standard_error",
// "top1_agreement"}, "learned": {…}, "ratio", "ratio_interval_95", "measurements", "residual",
// "sensitivities": [{"layer", "samples", "one_more", "one_fewer", "standard_error"}]}; null for an
// infinite one_fewer.
nlohmann::ordered_json to_json(const Calibration& calibration);

}  // namespace allot::evaluation
