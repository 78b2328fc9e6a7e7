#include "evaluation/generation.h"

#include <spdlog/fmt/fmt.h>

#include "base/error.h"

namespace allot::evaluation {

std::string_view name(StopRule rule) {
  return rule == StopRule::kEos ? "eos" : "answer";
}

StopRule parse_stop_rule(std::string_view text) {
  for (const StopRule rule : {StopRule::kEos, StopRule::kAnswer})
    if (name(rule) == text) return rule;
  throw InvalidArgument(fmt::format("\"{}\" is no stop rule; known are eos and answer", text));
}

std::string describe(const Generation& generation) {
  std::string text(kernels::name(generation.dtype));
  if (generation.weights != model::WeightStorage::kDtype)
    text += fmt::format(", weights {}", model::name(generation.weights));
  if (generation.keys != kernels::KeyFormat::kSixteenBits)
    text += fmt::format(", keys {}", kernels::name(generation.keys));
  text += generation.temperature == 0
              ? ", greedy"
              : fmt::format(", temperature {}, top-p {}", generation.temperature, generation.top_p);
  if (generation.repetition_penalty != 1)
    text += fmt::format(", repetition penalty {}", generation.repetition_penalty);
  text += fmt::format(", at most {} new tokens", generation.max_new_tokens);
  return generation.stop == StopRule::kAnswer ? text + ", until the answer" : text;
}

}  // namespace allot::evaluation
