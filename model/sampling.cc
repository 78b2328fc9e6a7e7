#include "model/sampling.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>
#include <string>

#include "base/error.h"
#include "kernels/token_weights.h"

namespace allot::model {
namespace {

void penalise(std::span<float> logits, std::span<const int32_t> seen, double penalty) {
  const float factor = static_cast<float>(penalty);
  for (int32_t id : seen) logits[id] = kernels::penalised(logits[id], factor);
}

// Moves the weights that have `bit` to the front and returns them.
std::span<uint32_t> heavy_first(std::span<uint32_t> weights, uint32_t bit) {
  const auto middle = std::partition(weights.begin(), weights.end(), [bit](uint32_t w) { return w & bit; });
  return weights.first(static_cast<size_t>(middle - weights.begin()));
}

uint64_t mass_of(std::span<const uint32_t> weights) {
  return std::accumulate(weights.begin(), weights.end(), uint64_t{0});
}

// Fills `weights` and returns their sum.
inline uint64_t weigh_each(std::span<const float> logits, float largest, float scale, uint32_t* weights) {
  uint64_t total = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    weights[id] = kernels::token_weight(logits[id], largest, scale);
    total += weights[id];
  }
  return total;
}

// Compiled a second time for processors with fused multiply-adds, which the weights need and which are
// function calls elsewhere.
[[gnu::target("avx2,fma")]] uint64_t weigh_each_avx2(std::span<const float> logits, float largest,
                                                     float scale, uint32_t* weights) {
  return weigh_each(logits, largest, scale, weights);
}
uint64_t weigh(std::span<const float> logits, float largest, float scale, uint32_t* weights) {
  static const bool has_avx2 =
      (__builtin_cpu_init(), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  return (has_avx2 ? weigh_each_avx2 : weigh_each)(logits, largest, scale, weights);
}

}  // namespace

void validate(const SamplingParams& params) {
  const auto refuse = [](const char* field, double value, const char* range) {
    throw InvalidArgument(fmt::format("sampling: {} is {}, expected {}", field, value, range));
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

void throw_not_a_number() {
  throw Error(
      "the model gave a logit that is not a number; its weights are damaged or overflow in this dtype: check "
      "the checkpoint, or load it with dtype float32 on the CPU");
}

int32_t argmax(std::span<const float> values) {
  // Independent lanes, because no compiler may vectorise a single running maximum.
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
  // A sum can also be NaN because of opposite infinities, so only then the values are checked one by one.
  if (std::isnan(check) && std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); }))
    return -1;
  return static_cast<int32_t>(std::find(values.begin(), values.end(), best) - values.begin());
}

TokenSampler::Nucleus TokenSampler::find_nucleus(uint64_t least) {
  candidates_ = weights_;
  std::span<uint32_t> left = candidates_;  // the threshold is one of them; their higher bits are equal
  uint64_t above = 0;                      // mass of the tokens that are heavier than all of them
  for (uint32_t bit = kernels::kLargestTokenWeight; bit != 0; bit >>= 1) {
    const std::span<uint32_t> heavy = heavy_first(left, bit);
    const uint64_t mass = mass_of(heavy);
    if (above + mass >= least) {
      left = heavy;
    } else {
      above += mass;
      left = left.subspan(heavy.size());
    }
  }
  const uint32_t threshold = left.front();
  const uint32_t ties = kernels::nucleus_ties(least, above, threshold);
  return {.threshold = threshold, .ties = ties, .mass = above + uint64_t{ties} * threshold};
}

int32_t TokenSampler::choose(std::span<float> logits, const SamplingParams& params,
                             std::span<const int32_t> seen, const DrawRow& draw) {
  if (params.repetition_penalty != 1) penalise(logits, seen, params.repetition_penalty);
  const int32_t best = argmax(logits);
  if (best < 0) return -1;
  const auto temperature = static_cast<float>(params.temperature);
  const float largest = logits[best];
  if (!(temperature > 0) || std::isinf(largest)) return best;

  const float scale = kernels::weight_scale(temperature);
  weights_.resize(logits.size());
  const uint64_t total = weigh(logits, largest, scale, weights_.data());
  const auto top_p = static_cast<float>(params.top_p);
  Nucleus nucleus = top_p < 1 ? find_nucleus(kernels::nucleus_mass(total, top_p))
                              : Nucleus{.threshold = 0, .ties = 0, .mass = total};
  uint64_t left = kernels::target_mass(nucleus.mass, draw_bits(draw, 0));
  for (size_t id = 0; id < logits.size(); ++id) {
    const uint32_t weight = weights_[id];
    if (weight < nucleus.threshold) continue;
    if (weight == nucleus.threshold) {
      if (nucleus.ties == 0) continue;
      --nucleus.ties;
    }
    if (left < weight) return static_cast<int32_t>(id);
    left -= weight;
  }
  assert(!"the target is below the mass of the nucleus");
  return best;
}

}  // namespace allot::model
