#include "evaluation/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "base/proportion.h"
#include "evaluation/json_fields.h"
#include "policy/divergence_search.h"
#include "policy/draws.h"
#include "policy/exact_layers.h"

namespace allot::evaluation {
namespace {

using policy::Schedule;
using Json = nlohmann::ordered_json;

// How far beyond a total that is too small the next one may lie, and which part of a total makes two of them
// neighbours.
constexpr int64_t kFurthest = 4;
constexpr int64_t kNeighbours = 50;

// Below this a divergence is rounding, and its log says nothing.
constexpr double kLeastDivergence = 1e-9;
// Sampling seeds: those of the steps count from 1, those of the two checks lie beyond them.
constexpr uint32_t kChoiceSeed = 0x80000000;
constexpr uint32_t kVerdictSeed = 0x80000001;

// `count` of 0 .. texts - 1, rising, a function of seed and step.
std::vector<size_t> texts_of_step(size_t texts, size_t count, uint64_t seed, int step) {
  std::vector<size_t> order(texts);
  std::iota(order.begin(), order.end(), size_t{0});
  policy::DrawStream stream(seed, static_cast<uint64_t>(step), policy::draw_purpose("calibration-texts"));
  for (size_t i = 0; i < count; ++i)
    std::swap(order[i], order[i + stream.below(static_cast<uint32_t>(texts - i))]);
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

// The part of a measurement that is of one schedule.
std::span<const TextFidelity> of_schedule(std::span<const TextFidelity> measured, size_t texts,
                                          size_t schedule) {
  return measured.subspan(schedule * texts, texts);
}

Divergence divergence_of(const FidelitySummary& summary) {
  return {.mean = summary.divergence, .standard_error = summary.divergence_error.value_or(0)};
}

// The ratio of the means with its interval from the texts: by the delta method, of the log.
void compare(std::span<const TextFidelity> uniform, std::span<const TextFidelity> learned,
             Calibration* made) {
  const double even = mean_divergence(uniform), found = mean_divergence(learned);
  double positions = 0, squares = 0;
  for (size_t i = 0; i < uniform.size(); ++i) {
    const auto here = static_cast<double>(uniform[i].positions);
    const double off =
        here * ((learned[i].divergence - found) / found - (uniform[i].divergence - even) / even);
    squares += off * off;
    positions += here;
  }
  const double error = std::sqrt(squares) / positions;
  made->ratio = found / even;
  made->ratio_low = made->ratio * std::exp(-kNormalQuantile975 * error);
  made->ratio_high = made->ratio * std::exp(kNormalQuantile975 * error);
}

void check(size_t texts, const CalibrationOptions& options) {
  if (texts == 0) throw InvalidArgument("calibration on no texts; expected at least one");
  if (options.texts_per_step < 1 || options.check_texts < 1)
    throw InvalidArgument(
        fmt::format("calibration with {} texts a step and {} at the end; expected at least 1",
                    options.texts_per_step, options.check_texts));
}

// What a learner of this total would be told of layers and bounds.
policy::PolicyConfig config_of(int64_t total, const CalibrationOptions& options) {
  return {.layers = options.layers, .total = total, .floor = options.floor, .bounds = options.bounds};
}

// A total as the search sees it: the layers that sample, numbered without the exact ones.
struct SampledPart {
  policy::PolicyConfig whole;
  policy::PolicyConfig part = policy::sampled_part(whole);
  policy::Limits limits = {};  // of the part

  SampledPart(int64_t total, const CalibrationOptions& options) : whole(config_of(total, options)) {
    // Faults are named by the layers' own numbers.
    (void)policy::limits_of(whole.bounds, whole.layers, total, whole.floor);
    limits = policy::limits_of(part.bounds, part.layers, total, part.floor);
  }
  Schedule widened(Schedule sampled) const { return policy::with_exact_layers(whole, std::move(sampled)); }
  std::vector<Schedule> widened(std::vector<Schedule> sampled) const {
    for (Schedule& schedule : sampled) schedule = widened(std::move(schedule));
    return sampled;
  }
  // Pinned layers may leave one schedule alone.
  bool one_schedule() const {
    return !limits.empty() &&
           (total_samples(limits.least) == whole.total || total_samples(limits.most) == whole.total);
  }
};

}  // namespace

int layers_that_sample(const CalibrationOptions& options) {
  return policy::sampled_part(config_of(0, options)).layers;
}

double mean_divergence(std::span<const TextFidelity> texts) {
  double sum = 0, positions = 0;
  for (const TextFidelity& text : texts) {
    sum += static_cast<double>(text.positions) * text.divergence;
    positions += static_cast<double>(text.positions);
  }
  return std::max(sum / positions, kLeastDivergence);
}

Calibration calibrate(int64_t total, size_t texts, const CalibrationOptions& options,
                      const MeasureFidelity& measure, policy::DivergenceModel* model,
                      const std::function<void(int64_t done, int64_t wanted)>& progress) {
  check(texts, options);
  const size_t aside = std::min<size_t>(static_cast<size_t>(options.check_texts), texts / 2);
  const size_t used = texts - aside;
  // A single text has to serve twice.
  std::vector<size_t> check_texts(std::max<size_t>(aside, 1));
  std::iota(check_texts.begin(), check_texts.end(), texts - check_texts.size());
  const size_t batch = std::min(used, static_cast<size_t>(options.texts_per_step));

  const int64_t measured_before = model->measurements();
  const SampledPart sampled(total, options);
  const int layers = sampled.part.layers;
  std::optional<Schedule> start;
  if (measured_before > 0) start = policy::best_within(*model, total, options.floor, sampled.limits);
  policy::DivergenceSearch search({.layers = layers,
                                   .total = total,
                                   .floor = options.floor,
                                   .limits = sampled.limits,
                                   .seed = options.seed,
                                   .steps = options.steps,
                                   .pairs = options.pairs},
                                  model, start);
  const int64_t wanted = options.steps + 2;
  while (!search.done() && !sampled.one_schedule()) {
    const std::vector<Schedule> asked = search.ask();
    const std::vector<size_t> chosen = texts_of_step(used, batch, options.seed, search.step());
    const std::vector<TextFidelity> measured =
        measure(chosen, sampled.widened(asked), static_cast<uint32_t>(search.step() + 1));
    std::vector<double> divergences;
    for (size_t i = 0; i < asked.size(); ++i)
      divergences.push_back(mean_divergence(of_schedule(measured, chosen.size(), i)));
    search.tell(divergences);
    progress(search.step(), wanted);
  }

  const std::vector<Schedule> candidates = search.candidates();
  size_t best = 0;
  if (candidates.size() > 1) {
    const std::vector<TextFidelity> measured = measure(check_texts, sampled.widened(candidates), kChoiceSeed);
    const auto divergence = [&](size_t i) {
      return mean_divergence(of_schedule(measured, check_texts.size(), i));
    };
    for (size_t i = 1; i < candidates.size(); ++i)
      if (divergence(i) < divergence(best)) best = i;
  }
  progress(options.steps + 1, wanted);
  // The even schedule without bounds, which is what all results are compared with; the one as close to it as
  // the bounds let it be, perhaps the same; and what is better than that.
  std::vector<Schedule> finalists = {policy::even_schedule(layers, total, options.floor)};
  if (finalists.front() != candidates.front()) finalists.push_back(candidates.front());
  const size_t fallback = finalists.size() - 1;
  if (best != 0) finalists.push_back(candidates[best]);
  const std::vector<TextFidelity> measured = measure(check_texts, sampled.widened(finalists), kVerdictSeed);
  const auto of_finalist = [&](size_t i) { return of_schedule(measured, check_texts.size(), i); };
  const auto uniform = of_finalist(0);
  // What the choice saw may have been luck.
  const bool worse =
      mean_divergence(of_finalist(finalists.size() - 1)) >= mean_divergence(of_finalist(fallback));
  const size_t chosen = worse ? fallback : finalists.size() - 1;
  const auto learned = of_finalist(chosen);
  const Schedule& schedule = finalists[chosen];

  Calibration made{.schedule = sampled.widened(schedule), .even = schedule == candidates.front()};
  const FidelitySummary of_uniform = summarise(uniform, layers, 1);
  const FidelitySummary of_learned = summarise(learned, layers, 1);
  made.uniform = divergence_of(of_uniform);
  made.learned = divergence_of(of_learned);
  made.top1_uniform = of_uniform.top1_agreement;
  made.top1_learned = of_learned.top1_agreement;
  compare(uniform, learned, &made);
  if (model->measurements() > 0) {
    int layer = 0;  // of those that sample
    for (const int32_t samples : made.schedule.samples) {
      made.sensitivities.emplace_back();
      if (samples != kExactLayer) made.sensitivities.back() = model->sensitivity(schedule, layer++);
    }
  }
  // Where the even schedule is kept, other totals are spread evenly, too.
  made.costs = policy::with_exact_layers(
      sampled.whole, made.even ? policy::shares_of(schedule, options.floor)
                               : policy::anchored(model->costs(), schedule, options.floor));
  made.residual = model->residual();
  made.measurements = model->measurements() - measured_before;
  made.texts = of_uniform.texts;
  made.positions = of_uniform.positions;
  made.other_texts = aside > 0;
  progress(wanted, wanted);
  return made;
}

TotalsToTry totals_to_try(const CalibrationOptions& options) {
  const policy::Totals within = policy::totals_within(options.bounds, options.layers, options.floor);
  const int64_t layers = layers_that_sample(options);
  const int64_t most = layers * std::max(options.most_samples, options.floor);
  const int64_t least = std::max(layers * std::max(options.floor, 1), within.least);
  return {.least = least, .most = std::max(least, std::min(most, within.most.value_or(most)))};
}

std::optional<int64_t> least_total(int64_t first, const CalibrationOptions& options,
                                   const std::function<bool(int64_t total)>& is_enough,
                                   const std::function<int64_t(int64_t low, int64_t high)>& guess) {
  const auto [least, most] = totals_to_try(options);
  if (first < least || first > most)
    throw InvalidArgument(
        fmt::format("the least total from {} on; expected {} to {} samples, of which each layer has one, the "
                    "floor and what its bounds ask for",
                    first, least, most));
  int64_t too_few = least - 1;
  std::optional<int64_t> enough;
  int64_t total = first;
  for (int count = 0; count < kMostTotals; ++count) {
    if (is_enough(total)) {
      enough = total;
    } else {
      too_few = total;
    }
    const int64_t high = enough.value_or(std::min(kFurthest * total, most));
    if (high - too_few <= std::max<int64_t>(1, enough ? high / kNeighbours : 0)) break;
    total = std::clamp(guess(too_few, high), too_few + 1, high);
    // At an end that is known nothing is to be guessed; the middle decides.
    if (enough && (total == high || total == too_few + 1)) total = too_few + (high - too_few) / 2;
  }
  return enough;
}

std::optional<int64_t> least_total(int64_t first, const CalibrationOptions& options,
                                   const std::function<bool(int64_t total)>& is_enough) {
  bool found = false;
  const auto remember = [&](int64_t total) {
    const bool enough = is_enough(total);
    found = found || enough;
    return enough;
  };
  return least_total(first, options, remember, [&](int64_t low, int64_t high) {
    if (!found) return 2 * low;
    return static_cast<int64_t>(
        std::llround(std::sqrt(static_cast<double>(low) * static_cast<double>(high))));
  });
}

std::optional<int64_t> least_total(double margin, int64_t first, const CalibrationOptions& options,
                                   const std::function<Calibration(int64_t total)>& calibrate_total,
                                   const policy::DivergenceModel& model) {
  if (!(margin > 0))
    throw InvalidArgument(
        fmt::format("the least total within {} nats, from {} on; expected a margin above 0", margin, first));
  double off = 0;  // of the model's log divergence, at the total before
  const auto is_enough = [&](int64_t total) {
    const Calibration found = calibrate_total(total);
    Schedule sampled = found.schedule;
    std::erase(sampled.samples, kExactLayer);
    off = std::log(std::max(found.learned.mean, kLeastDivergence)) - model.log_divergence(sampled);
    return found.learned.mean <= margin;
  };
  const auto expected_within = [&](int64_t total) {
    const SampledPart part(total, options);
    return model.log_divergence(policy::best_within(model, total, options.floor, part.limits)) + off <=
           std::log(margin);
  };
  return least_total(first, options, is_enough, [&](int64_t low, int64_t high) {
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (expected_within(middle) ? high : low) = middle;
    }
    return high;
  });
}

Json to_json(const Calibration& calibration) {
  const auto side = [](const Divergence& divergence, double top1) {
    return Json{{"divergence", divergence.mean},
                {"standard_error", divergence.standard_error},
                {"top1_agreement", top1}};
  };
  Json sensitivities = Json::array();
  for (size_t layer = 0; layer < calibration.sensitivities.size(); ++layer) {
    const std::optional<policy::LayerSensitivity>& of_layer = calibration.sensitivities[layer];
    if (!of_layer) continue;
    sensitivities.push_back(
        {{"layer", layer},
         {"samples", calibration.schedule.samples[layer]},
         {"one_more", of_layer->one_more},
         {"one_fewer", std::isfinite(of_layer->one_fewer) ? Json(of_layer->one_fewer) : Json()},
         {"standard_error", of_layer->error}});
  }
  return {{"samples", samples_json(calibration.schedule.samples)},
          {"total", calibration.schedule.total()},
          {"texts", calibration.texts},
          {"positions", calibration.positions},
          {"other_texts", calibration.other_texts},
          {"uniform", side(calibration.uniform, calibration.top1_uniform)},
          {"learned", side(calibration.learned, calibration.top1_learned)},
          {"ratio", calibration.ratio},
          {"ratio_interval_95", {calibration.ratio_low, calibration.ratio_high}},
          {"measurements", calibration.measurements},
          {"residual", calibration.residual},
          {"sensitivities", std::move(sensitivities)}};
}

}  // namespace allot::evaluation
