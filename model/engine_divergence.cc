#include "model/engine_divergence.h"

#include <spdlog/fmt/fmt.h>

#include <vector>

#include "base/error.h"
#include "kernels/rows.h"

namespace allot::model {

Fidelity engine_divergence(Engine& reference, Engine& measured, const FidelityText& text, FidelityMode mode) {
  const int32_t vocab_size = reference.config().vocab_size;
  if (measured.config().vocab_size != vocab_size) {
    throw InvalidArgument(
        fmt::format("an engine of {} tokens was to be compared with one of {}; give both the same model",
                    measured.config().vocab_size, vocab_size));
  }
  const auto tokens = static_cast<int64_t>(text.ids.size());
  const bool whole = mode == FidelityMode::kPrefill;
  if (!whole && (text.prompt_tokens < 1 || text.prompt_tokens > tokens)) {
    throw InvalidArgument(fmt::format("the prompt has {} tokens of a text of {}; expected 1 to {}",
                                      text.prompt_tokens, tokens, tokens));
  }
  const std::vector<float> expected = reference.logits(text.ids, {}, text.key, text.question);
  const std::vector<float> logits = measured.logits(text.ids, {}, text.key, text.question);
  const int64_t first = whole ? 0 : text.prompt_tokens - 1;
  std::vector<kernels::RowDivergence> of_rows(static_cast<size_t>(tokens - first));
  kernels::row_divergence({.rows = tokens - first,
                           .vocab_size = vocab_size,
                           .stride = vocab_size,
                           .dense = expected.data() + first * vocab_size,
                           .sampled = logits.data() + first * vocab_size,
                           .out = of_rows.data()},
                          measured.options().threads);
  Fidelity result;
  result.tokens = tokens;
  take_comparison(of_rows, false, &result);
  return result;
}

}  // namespace allot::model
