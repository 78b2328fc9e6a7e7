#include "app/scoring/fidelity_engine.h"

#include <algorithm>

namespace allot::app {

model::FidelityMode fidelity_mode(const std::string& mode) {
  if (mode == "decode") return model::FidelityMode::kDecode;
  return mode == "reply" ? model::FidelityMode::kReply : model::FidelityMode::kPrefill;
}

model::EngineOptions fidelity_engine_options(const FidelityPlan& plan) {
  model::EngineOptions engine;
  engine.device = plan.options.device;
  engine.adapter = plan.options.adapter;
  engine.dtype = plan.conditions.generation.dtype;
  engine.weights = plan.conditions.generation.weights;
  engine.keys = plan.conditions.generation.keys;
  engine.attention = plan.conditions.attention;
  engine.prefill_chunk_tokens = plan.options.prefill_chunk;
  engine.threads = plan.options.threads;
  // Room for the texts of a pass, whose last pages may be all but empty, and for one longer than it.
  size_t longest = 0;
  for (const FidelityItem& text : plan.texts) longest = std::max(longest, text.ids.size());
  engine.cache_tokens = model::max_pass_tokens(engine) + static_cast<int64_t>(longest) +
                        int64_t{engine.max_sequences} * engine.page_size;
  return engine;
}

model::FidelityText fidelity_text(const FidelityPlan& plan, const FidelityItem& item,
                                  uint32_t sampling_seed) {
  return {.ids = item.ids,
          .prompt_tokens = item.prompt_tokens,
          .key = {.run_seed = plan.conditions.seed, .sampling_seed = sampling_seed},
          .question = item.question};
}

evaluation::TextFidelity text_fidelity(const model::Fidelity& measured) {
  return {.tokens = measured.tokens,
          .positions = measured.positions,
          .divergence = measured.divergence,
          .top1_agreement = measured.top1_agreement,
          .sampled_tokens = measured.sampled_tokens,
          .rows_read = measured.rows_read,
          .seconds = measured.seconds,
          .comparison_seconds = measured.comparison_seconds};
}

}  // namespace allot::app
