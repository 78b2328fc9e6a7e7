#include "model/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"

namespace allot::model {
namespace {

void penalise(std::span<float> logits, std::span<const int32_t> seen, double penalty) {
  const float factor = static_cast<float>(penalty);
  for (int32_t id : seen) logits[id] = logits[id] > 0 ? logits[id] / factor : logits[id] * factor;
}

[[noreturn]] void throw_not_a_number() {
  throw Error(
      "the model gave a logit that is not a number; its weights are damaged or overflow in this dtype: check "
      "the "
      "checkpoint, or load it with dtype float32");
}

// 32 bits: a token of probability 2^-24 still has its share.
double uniform(const DrawRow& draw) {
  return draw_bits(draw, 0) * 0x1p-32;
}

}  // namespace

void validate(const SamplingParams& params) {
  const auto refuse = [](const char* field, double value, const char* range) {
    throw InvalidArgument(std::string("sampling: ") + field + " is " + std::to_string(value) + ", expected " +
                          range);
  };
  if (!(params.temperature >= 0) || std::isinf(params.temperature)) {
    refuse("temperature", params.temperature, "a number >= 0 (0 is greedy)");
  }
  if (!(params.top_p > 0 && params.top_p <= 1))
    refuse("top_p", params.top_p, "a number above 0 and at most 1");
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    refuse("repetition_penalty", params.repetition_penalty, "a number > 0 (1 is none)");
  }
}

int32_t argmax(std::span<const float> values) {
  // Independent lanes, because a single running maximum is a chain that no compiler may vectorise.
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> largest;
  largest.fill(-INFINITY);
  std::array<float, kLanes> sum{};  // NaN as soon as one value is
  size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      largest[lane] = value > largest[lane] ? value : largest[lane];
      sum[lane] += value;
    }
  }
  float best = -INFINITY, check = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    best = std::max(best, largest[lane]);
    check += sum[lane];
  }
  for (; i < values.size(); ++i) {
    best = std::max(best, values[i]);
    check += values[i];
  }
  // A sum can also be NaN because of opposite infinities; only then is it worth a second look.
  if (std::isnan(check) && std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); }))
    return -1;
  return static_cast<int32_t>(std::find(values.begin(), values.end(), best) - values.begin());
}

int32_t TokenSampler::choose(std::span<float> logits, const SamplingParams& params,
                             std::span<const int32_t> seen, const DrawRow& draw) {
  if (params.repetition_penalty != 1) penalise(logits, seen, params.repetition_penalty);
  const int32_t best = argmax(logits);
  if (best < 0) throw_not_a_number();
  if (params.temperature == 0) return best;

  const float largest = logits[best];
  const double inverse_temperature = 1 / params.temperature;
  weights_.resize(logits.size());
  double total = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    weights_[id] =
        static_cast<float>(std::exp((static_cast<double>(logits[id]) - largest) * inverse_temperature));
    total += weights_[id];
  }

  if (params.top_p < 1) {
    // The nucleus is usually a few tokens: popping them off a heap costs O(vocabulary + nucleus log
    // vocabulary).
    const auto less_likely = [&](int32_t a, int32_t b) {
      return weights_[a] != weights_[b] ? weights_[a] < weights_[b] : a > b;
    };
    candidates_.resize(logits.size());
    std::iota(candidates_.begin(), candidates_.end(), 0);
    std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
    auto nucleus = candidates_.end();  // popped tokens gather behind the heap
    double kept = 0;
    while (nucleus != candidates_.begin() && kept < params.top_p * total) {
      std::pop_heap(candidates_.begin(), nucleus--, less_likely);
      kept += weights_[*nucleus];
    }
    double left = uniform(draw) * kept;
    for (auto token = candidates_.end(); token != nucleus;) {
      left -= weights_[*--token];
      if (left < 0) return *token;
    }
    return best;
  }

  double left = uniform(draw) * total;
  for (size_t id = 0; id < logits.size(); ++id) {
    left -= weights_[id];
    if (left < 0) return static_cast<int32_t>(id);
  }
  return best;  // rounding left nothing to choose from; the most likely token is the least wrong
}

}  // namespace allot::model
