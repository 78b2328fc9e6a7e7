// The rules by which counts are compared with a schedule, and the table of them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "app/files/executed_file.h"
#include "episode/samples.h"

namespace allot::app {
namespace {

using model::LayerExecution;

// Most estimators whose heads choose together read their rows for every token unless there are fewer keys.
// Weights that are 0 in the arithmetic of the engine, and targets that rounding takes to a neighbour, are
// few.
constexpr double kFewestRows = 0.95;
constexpr double kMostRows = 1.01;

double per_token(int64_t sum, int64_t tokens) {
  return tokens > 0 ? static_cast<double>(sum) / static_cast<double>(tokens) : 0;
}

bool reads_all_its_rows(const kernels::EstimatorRow& row) {
  return row.scope != kernels::Scope::kHead && !row.spaced;
}

// The words of a unit: "samples a head".
const char* unit_words(const kernels::AttentionMethod& method) {
  return method.unit == kernels::BudgetUnit::kRows ? "rows a KV head" : "samples a head";
}

void judge_rows(const LayerExecution& layer, const evaluation::Conditions& conditions, size_t number,
                std::vector<std::string>* faults) {
  if (!layer.rows || layer.sampled_tokens == 0) return;
  const int64_t reads = layer.sampled_tokens * conditions.model.num_kv_heads;  // of a KV head for a token
  const auto rows = static_cast<double>(*layer.rows);
  const auto limit = static_cast<double>(layer.row_limit);
  // Every estimator reads at least one row where it has samples and keys.
  const double fewest = reads_all_its_rows(row_of(conditions.attention.estimator))
                            ? kFewestRows * limit
                            : static_cast<double>(std::min(reads, layer.row_limit));
  if (rows > kMostRows * limit)
    faults->push_back(
        fmt::format("layer {} read {:.2f} value rows a KV head and token, at most {:.2f} possible", number,
                    per_token(*layer.rows, reads), per_token(layer.row_limit, reads)));
  if (rows < fewest)
    faults->push_back(
        fmt::format("layer {} read {:.2f} value rows a KV head and token, at least {:.2f} expected", number,
                    per_token(*layer.rows, reads), fewest / static_cast<double>(reads)));
}

// What is wrong with the tokens and the samples of a layer whose schedule says `asked`.
void judge_layer(const LayerExecution& layer, const evaluation::Conditions& conditions, int32_t asked,
                 size_t number, std::vector<std::string>* faults) {
  const kernels::AttentionMethod& method = conditions.attention;
  if (asked == kExactLayer || !row_of(method.estimator).samples) {
    if (layer.sampled_tokens > 0)
      faults->push_back(fmt::format("layer {} sampled {} tokens with {:.1f} {}, exact attention asked",
                                    number, layer.sampled_tokens,
                                    per_token(layer.samples, layer.sampled_tokens), unit_words(method)));
    if (layer.exact_tokens == 0) faults->push_back(fmt::format("layer {} computed no token", number));
    return;
  }
  if (layer.sampled_tokens == 0) {
    faults->push_back(fmt::format("layer {} sampled no token and computed {} exactly, {} {} asked", number,
                                  layer.exact_tokens, asked, unit_words(method)));
    return;
  }
  if (layer.samples != layer.sampled_tokens * asked)
    faults->push_back(fmt::format("layer {} read {:.1f} {}, {} asked", number,
                                  per_token(layer.samples, layer.sampled_tokens), unit_words(method), asked));
  if (layer.exact_tokens > 0 && method.prefill == kernels::Prefill::kSampled)
    faults->push_back(fmt::format("layer {} computed {} of {} tokens exactly, but prompts are to be sampled",
                                  number, layer.exact_tokens, layer.exact_tokens + layer.sampled_tokens));
  judge_rows(layer, conditions, number, faults);
}

// Model and attention of the schedule against those of the engine. What one side does not know differs from
// nothing.
std::vector<evaluation::Difference> decisive(const evaluation::Conditions& asked,
                                             const evaluation::Conditions& found) {
  std::vector<evaluation::Difference> kept;
  for (evaluation::Difference& difference : evaluation::decisive_differences(asked, found)) {
    const std::string& field = difference.field;
    const bool counts = field.starts_with("model.") || field.starts_with("attention.");
    // Another tokenizer gives other tokens, not other attention.
    if (counts && field != "model.tokenizer_sha256") kept.push_back(std::move(difference));
  }
  return kept;
}

bool has(const std::vector<evaluation::Difference>& differences, std::string_view field) {
  return std::ranges::find(differences, field, &evaluation::Difference::field) != differences.end();
}

}  // namespace

bool ExecutedVerdict::as_asked() const {
  return differences.empty() &&
         std::ranges::all_of(layers, [](const Layer& layer) { return layer.faults.empty(); });
}

ExecutedVerdict judge(const ExecutedFile& executed, const ScheduleFile& schedule) {
  ExecutedVerdict verdict;
  verdict.differences = decisive(schedule.conditions, executed.conditions);
  const std::vector<int32_t>& asked = schedule.schedule.samples;
  // The attention that was asked for judges, whatever the engine says of its own.
  const evaluation::Conditions& conditions = schedule.conditions;
  bool counts_rows = true;
  for (size_t i = 0; i < asked.size(); ++i) {
    ExecutedVerdict::Layer layer{.asked = layer_text(asked[i]), .faults = {}};
    if (i >= executed.layers.size()) {
      layer.faults.push_back(fmt::format("layer {} is not in the file", i));
      verdict.layers.push_back(std::move(layer));
      continue;
    }
    const LayerExecution& done = executed.layers[i];
    if (executed.schedule.samples[i] != asked[i])
      layer.faults.push_back(fmt::format("layer {} was given {} by the engine's schedule, {} asked", i,
                                         layer_text(executed.schedule.samples[i]), layer.asked));
    judge_layer(done, conditions, asked[i], i, &layer.faults);
    // An engine may leave out the last layer's tokens from which nothing follows.
    const auto tokens = [&](const LayerExecution& one) { return one.sampled_tokens + one.exact_tokens; };
    const int64_t here = tokens(done), first = tokens(executed.layers.front());
    if (here > first || (here < first && i + 1 < asked.size()))
      layer.faults.push_back(fmt::format("layer {} computed {} tokens, layer 0 {}", i, here, first));
    if (done.sampled_tokens > 0 && !done.rows) counts_rows = false;
    verdict.layers.push_back(std::move(layer));
  }
  for (size_t i = asked.size(); i < executed.layers.size(); ++i)
    verdict.layers.push_back(
        {.asked = "none", .faults = {fmt::format("layer {} is not in the schedule", i)}});
  if (!counts_rows)
    verdict.unknown.emplace_back(
        "the value rows were not counted: samples are those that the kernels were given");
  for (const char* field : {"model.weights_fingerprint", "model.config_sha256"})
    if (executed.conditions.unknown.contains(field) || schedule.conditions.unknown.contains(field))
      verdict.unknown.push_back(fmt::format("{} is not known to both", field));
  return verdict;
}

std::string describe(const ExecutedVerdict& verdict, const ExecutedFile& executed) {
  const kernels::AttentionMethod& method = executed.conditions.attention;
  std::string text = fmt::format("{} {} ({}), {}: {} a token\n\n", executed.engine, executed.engine_version,
                                 executed.computed_by, kernels::name(method.estimator), unit_words(method));
  text += fmt::format("{:>5}  {:>7}  {:>9}  {:>10}  {:>8}  {:>14}  {:>12}\n", "layer", "asked", "executed",
                      "value rows", "at most", "sampled tokens", "exact tokens");
  const int64_t kv_heads = executed.conditions.model.num_kv_heads;
  for (size_t i = 0; i < verdict.layers.size(); ++i) {
    const LayerExecution layer = i < executed.layers.size() ? executed.layers[i] : LayerExecution{};
    const int64_t reads = layer.sampled_tokens * kv_heads;
    const bool sampled = reads > 0;
    text += fmt::format("{:>5}  {:>7}  {:>9}  {:>10}  {:>8}  {:>14}  {:>12}{}\n", i, verdict.layers[i].asked,
                        sampled ? fmt::format("{:.1f}", per_token(layer.samples, layer.sampled_tokens)) : "-",
                        sampled && layer.rows ? fmt::format("{:.2f}", per_token(*layer.rows, reads)) : "-",
                        sampled ? fmt::format("{:.2f}", per_token(layer.row_limit, reads)) : "-",
                        layer.sampled_tokens, layer.exact_tokens,
                        verdict.layers[i].faults.empty() ? "" : "  differs");
  }
  text += "\n";
  for (const std::string& unknown : verdict.unknown) text += fmt::format("not shown: {}\n", unknown);
  if (verdict.as_asked()) return text + "executed as asked\n";
  if (!verdict.differences.empty())
    text += fmt::format("differs (schedule against engine): {}\n", evaluation::describe(verdict.differences));
  if (!executed.conditions.model.adapter && has(verdict.differences, "model.adapter"))
    text +=
        "the engine had no adapter: where allot export --adapter merged it into the weights, compare with the "
        "schedule.json in the exported directory\n";
  for (const ExecutedVerdict::Layer& layer : verdict.layers)
    for (const std::string& fault : layer.faults) text += fmt::format("differs: {}\n", fault);
  return text;
}

}  // namespace allot::app
