#include "evaluation/fidelity.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

void check(std::span<const TextFidelity> texts) {
  if (texts.empty()) throw InvalidArgument("fidelity of no texts; expected at least one");
  for (size_t i = 0; i < texts.size(); ++i) {
    const TextFidelity& text = texts[i];
    if (text.positions < 1)
      throw InvalidArgument(
          fmt::format("fidelity: text {} has {} positions, expected at least 1", i, text.positions));
    if (!std::isfinite(text.divergence) || !std::isfinite(text.top1_agreement))
      throw InvalidArgument(
          fmt::format("fidelity: text {} has divergence {} and agreement {}, expected numbers", i,
                      text.divergence, text.top1_agreement));
  }
}

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}

}  // namespace

FidelitySummary summarise(std::span<const TextFidelity> texts, int64_t sampled_layers, int32_t num_kv_heads) {
  check(texts);
  FidelitySummary summary;
  summary.texts = static_cast<int64_t>(texts.size());
  int64_t sampled_tokens = 0, rows_read = 0;
  double seconds = 0, comparison_seconds = 0;
  for (const TextFidelity& text : texts) {
    const auto positions = static_cast<double>(text.positions);
    summary.tokens += text.tokens;
    summary.positions += text.positions;
    summary.divergence += positions * text.divergence;
    summary.top1_agreement += positions * text.top1_agreement;
    sampled_tokens += text.sampled_tokens;
    rows_read += text.rows_read;
    seconds += text.seconds;
    comparison_seconds += text.comparison_seconds;
  }
  const auto positions = static_cast<double>(summary.positions);
  summary.divergence /= positions;
  summary.top1_agreement /= positions;
  if (texts.size() > 1) {
    double squares = 0;
    for (const TextFidelity& text : texts) {
      const double off = static_cast<double>(text.positions) * (text.divergence - summary.divergence);
      squares += off * off;
    }
    summary.divergence_error = std::sqrt(squares) / positions;
  }
  if (rows_read > 0 && sampled_layers > 0) {
    const int64_t heads = sampled_tokens * num_kv_heads * sampled_layers;
    summary.rows_per_kv_head = static_cast<double>(rows_read) / static_cast<double>(heads);
  }
  if (summary.tokens > 0) summary.microseconds = 1e6 * seconds / static_cast<double>(summary.tokens);
  summary.comparison_microseconds = 1e6 * comparison_seconds / positions;
  return summary;
}

Json to_json(const FidelityRow& row) {
  const bool whole = row.samples == std::floor(row.samples) && std::abs(row.samples) < 1e15;
  const FidelitySummary& summary = row.summary;
  Json json = {{"estimator", kernels::name(row.method.estimator)},
               {"schedule", row.schedule},
               {"samples", whole ? Json(static_cast<int64_t>(row.samples)) : Json(row.samples)},
               {"exact_layers", row.exact_layers}};
  if (row.simulated_cache) json["simulated_cache"] = kernels::name(*row.simulated_cache);
  json["texts"] = summary.texts;
  json["tokens"] = summary.tokens;
  json["positions"] = summary.positions;
  json["divergence"] = summary.divergence;
  json["divergence_standard_error"] = number_or_null(summary.divergence_error);
  json["top1_agreement"] = summary.top1_agreement;
  json["rows_per_kv_head"] = number_or_null(summary.rows_per_kv_head);
  json["microseconds"] = row.simulated_cache ? Json() : Json(summary.microseconds);
  json["comparison_microseconds"] = row.simulated_cache ? Json() : Json(summary.comparison_microseconds);
  return json;
}

}  // namespace allot::evaluation
