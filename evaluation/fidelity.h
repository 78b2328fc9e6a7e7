// Fidelity over texts: how far next-token distributions under an attention method and a schedule are from
// those of exact attention, put together from measurements of single texts. No model here: the caller
// measures.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "kernels/cache_format.h"
#include "kernels/method.h"

namespace allot::evaluation {

// One text under one method and schedule.
struct TextFidelity {
  int64_t tokens = 0;             // of the text
  int64_t positions = 0;          // measured, >= 1
  double divergence = 0;          // mean over them, nats
  double top1_agreement = 0;      // share of them
  int64_t sampled_tokens = 0;     // queries whose attention was sampled
  int64_t rows_read = 0;          // distinct value rows for these, over layers and KV heads; 0 = not counted
  double seconds = 0;             // of its pass
  double comparison_seconds = 0;  // of its logits, exact and sampled, and their comparison
};

// Means over the positions of all texts.
struct FidelitySummary {
  int64_t texts = 0;
  int64_t tokens = 0;
  int64_t positions = 0;
  double divergence = 0;  // nats
  // Of the divergence, from the spread of the texts: as standard_error() has it for scores where texts have
  // equally many positions. Nothing for fewer than two texts.
  std::optional<double> divergence_error = {};
  double top1_agreement = 0;
  // Distinct value rows that a sampled query reads for a KV head of a layer that samples; nothing when not
  // counted.
  std::optional<double> rows_per_kv_head = {};
  double microseconds = 0;             // of the sampled pass for a token, without the logits
  double comparison_microseconds = 0;  // of exact and sampled logits and their comparison, for a position
};

// `sampled_layers` is how many layers of the schedule sample, `num_kv_heads` the model's. Throws
// InvalidArgument for no texts, and for a text without a position or with a number that is not finite, naming
// its place and the value.
FidelitySummary summarise(std::span<const TextFidelity> texts, int64_t sampled_layers, int32_t num_kv_heads);

// A method under a schedule, and how near it came.
struct FidelityRow {
  kernels::AttentionMethod method = {};
  std::string schedule = {};  // as asked for: "uniform:8"
  double samples = 0;         // of a layer that samples, on average, in the unit of the method's budgets
  int64_t exact_layers = 0;
  // Of keys and values; times are those of the simulation then, and are not shown.
  std::optional<kernels::CacheFormats> simulated_cache = {};
  FidelitySummary summary = {};
};

// {"estimator", "schedule", "samples", "exact_layers", "texts", "tokens", "positions", "divergence",
// "divergence_standard_error", "top1_agreement", "rows_per_kv_head", "microseconds",
// "comparison_microseconds"}; null for what is not known. A whole number of samples is written as such. Where
// a cache is simulated "simulated_cache", "fp8/int8", comes behind the exact layers.
nlohmann::ordered_json to_json(const FidelityRow& row);

}  // namespace allot::evaluation
