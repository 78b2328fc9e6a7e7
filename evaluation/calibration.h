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
#include "policy/bounds.h"
#include "policy/divergence_model.h"
#include "policy/schedule.h"

namespace allot::evaluation {

struct CalibrationOptions {
  int layers = 0;
  int32_t floor = 1;
  policy::Bounds bounds = {};  // that every schedule keeps besides, exact layers among them
  uint64_t seed = 0;
  int steps = 40;           // of a total, each a batch of texts
  int pairs = 8;            // of schedules in a step, mirrored around the centre
  int texts_per_step = 16;  // at most
  int check_texts = 64;     // at most: set aside for the choice at the end, where there are enough texts
  // Of a layer on average, the most that least_total() tries: more than a text has keys are of no use.
  int32_t most_samples = 1024;
};

// Of the model of a calibration: exact layers have no place in it.
int layers_that_sample(const CalibrationOptions& options);

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
  // The best that was found; where none is better the even one, as close as the bounds let it be.
  policy::Schedule schedule = {};
  bool even = false;        // none was better
  Divergence uniform = {};  // of the even schedule, which knows no bounds but exact layers
  Divergence learned = {};  // of `schedule`, on the same texts with the same draws
  double top1_uniform = 0;  // share of positions whose most likely token is that of exact attention
  double top1_learned = 0;
  // Of learned to uniform, with a 95 % interval from the spread of the texts.
  double ratio = 1;
  double ratio_low = 1;
  double ratio_high = 1;
  // At `schedule`, by the fit: [layers], nothing for an exact one; empty where nothing was searched.
  std::vector<std::optional<policy::LayerSensitivity>> sensitivities = {};
  // Of the fit, without the bounds; at the total they give `schedule`.
  std::optional<policy::LayerCosts> costs = {};
  double residual = 0;       // standard deviation of a measurement's log around the fit
  int64_t measurements = 0;  // schedules, of this total
  int64_t texts = 0;         // measured at the end
  int64_t positions = 0;     // of these
  bool other_texts = false;  // that the search did not use
};

// Searches the schedule of `total` samples with the least divergence on `texts` texts, numbered from 0.
// The last texts are set aside, at most half of them; the even schedule, the mean of the search and its
// model's best are measured on these with fresh draws, and the winner once more, beside the even schedule,
// with others. `model`, of layers_that_sample(), keeps what is learned from one total to the next. Throws
// InvalidArgument for options that do not fit, bounds that no schedule of the total keeps among them, and
// what `measure` throws.
Calibration calibrate(int64_t total, size_t texts, const CalibrationOptions& options,
                      const MeasureFidelity& measure, policy::DivergenceModel* model,
                      const std::function<void(int64_t done, int64_t wanted)>& progress);

inline constexpr int kMostTotals = 8;
struct TotalsToTry {
  int64_t least = 0;  // a sample, the floor and the bounds' least for each layer
  int64_t most = 0;   // most_samples of a layer on average, no more than the bounds allow
};
TotalsToTry totals_to_try(const CalibrationOptions& options);

// Looks for the least total that is enough: first `first`, then the one that `guess` names of those between
// `low`, which is too small, and `high`, which is enough or the furthest to try next, until the two are
// within 2 % of each other, most_samples are too few, or after kMostTotals. `is_enough` measures a total.
// Returns the least total that was enough; nothing where none was. Throws InvalidArgument for a first total
// outside totals_to_try().
std::optional<int64_t> least_total(int64_t first, const CalibrationOptions& options,
                                   const std::function<bool(int64_t total)>& is_enough,
                                   const std::function<int64_t(int64_t low, int64_t high)>& guess);
// The same without a guess: twice a total that is too small until one is enough, then halfway between the
// two, of the logs.
std::optional<int64_t> least_total(int64_t first, const CalibrationOptions& options,
                                   const std::function<bool(int64_t total)>& is_enough);
// The least total whose learned divergence is at most `margin` nats, guessed where the model expects the
// margin. `calibrate_total` measures a total and makes `model` know of it. Throws InvalidArgument for a
// margin that is not above 0, too.
std::optional<int64_t> least_total(double margin, int64_t first, const CalibrationOptions& options,
                                   const std::function<Calibration(int64_t total)>& calibrate_total,
                                   const policy::DivergenceModel& model);

// {"samples", "total", "texts", "positions", "other_texts", "uniform": {"divergence", "standard_error",
// "top1_agreement"}, "learned": {…}, "ratio", "ratio_interval_95", "measurements", "residual",
// "sensitivities": [{"layer", "samples", "one_more", "one_fewer", "standard_error"}]}; null for an
// infinite one_fewer, no entry for an exact layer.
nlohmann::ordered_json to_json(const Calibration& calibration);

}  // namespace allot::evaluation
