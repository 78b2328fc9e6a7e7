#include "app/run/generation_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "app/run/model_options.h"

namespace allot::app {
namespace {

// "default by prompt style: 0.6 (boxed, llama-chat, deepseek-chat, chat), 0 (plain)".
template <class Value>
std::string defaults(const std::string& task, Value evaluation::Generation::*field) {
  std::vector<std::pair<Value, std::vector<std::string>>> styles_of;
  for (const std::string& style : evaluation::prompt_style_names()) {
    const auto made = evaluation::make_task(task, evaluation::parse_prompt_style(style));
    const Value value = made->generation_defaults().*field;
    auto entry = std::ranges::find(styles_of, value, [](const auto& known) { return known.first; });
    if (entry == styles_of.end()) entry = styles_of.emplace(entry, value, std::vector<std::string>());
    entry->second.push_back(style);
  }
  std::vector<std::string> parts;
  for (const auto& [value, styles] : styles_of)
    parts.push_back(fmt::format("{} ({})", value, fmt::join(styles, ", ")));
  return fmt::format("default by prompt style: {}", fmt::join(parts, ", "));
}

}  // namespace

void declare_keys_option(OptionSet* set, std::string* keys) {
  set->choice("keys", keys, kernels::key_format_names(),
              fmt::format("keys of the KV cache: {}; the last two on a CUDA device alone, with {}",
                          kernels::kKeyFormatsHelp,
                          "exact attention, iid, strat, sys, threshold, joint, pooled or level")
                  .c_str());
}

void declare_generation_options(OptionSet* set, GenerationOptions* options, const std::string& task) {
  using evaluation::Generation;
  set->choice("dtype", &options->dtype, {"bfloat16", "float32", "float16"},
              "weights, activations and KV cache");
  declare_weights_option(set, &options->weights);
  declare_keys_option(set, &options->keys);
  set->real("temperature", &options->temperature, 0, evaluation::kMaxTemperature, "T",
            ("sampling temperature, 0 is greedy; " + defaults(task, &Generation::temperature)).c_str());
  set->real("top-p", &options->top_p, evaluation::kMinTopP, 1, "P",
            ("sample from the smallest set of tokens whose probabilities sum to P; " +
             defaults(task, &Generation::top_p))
                .c_str());
  set->real("repetition-penalty", &options->repetition_penalty, evaluation::kMinRepetitionPenalty,
            evaluation::kMaxRepetitionPenalty, "R",
            ("above 1 makes tokens that occurred before less likely; " +
             defaults(task, &Generation::repetition_penalty))
                .c_str());
  set->integer("max-new-tokens", &options->max_new_tokens, 1, evaluation::kMaxNewTokens, "N",
               ("longest reply; " + defaults(task, &Generation::max_new_tokens)).c_str());
}

evaluation::Generation resolve(const GenerationOptions& options, const evaluation::Task& task) {
  evaluation::Generation generation = task.generation_defaults();
  generation.dtype = kernels::parse_dtype(options.dtype);
  generation.weights = model::parse_weight_storage(options.weights);
  generation.keys = kernels::parse_key_format(options.keys);
  generation.temperature = options.temperature.value_or(generation.temperature);
  generation.top_p = options.top_p.value_or(generation.top_p);
  generation.repetition_penalty = options.repetition_penalty.value_or(generation.repetition_penalty);
  generation.max_new_tokens = options.max_new_tokens.value_or(generation.max_new_tokens);
  return generation;
}

GenerationOptions options_of(const evaluation::Generation& generation) {
  return {.dtype = std::string(kernels::name(generation.dtype)),
          .weights = std::string(model::name(generation.weights)),
          .keys = std::string(kernels::name(generation.keys)),
          .temperature = generation.temperature,
          .top_p = generation.top_p,
          .repetition_penalty = generation.repetition_penalty,
          .max_new_tokens = generation.max_new_tokens};
}

}  // namespace allot::app
