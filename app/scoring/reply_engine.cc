#include "app/scoring/reply_engine.h"

namespace allot::app {

model::EngineOptions engine_options(const ReplyOptions& options, const evaluation::Conditions& conditions) {
  model::EngineOptions engine;
  engine.adapter = options.adapter;
  engine.dtype = conditions.generation.dtype;
  engine.attention = conditions.attention;
  engine.max_sequences = options.max_sequences;
  engine.device = options.device;
  engine.threads = options.threads;
  return engine;
}

worker::GenerationLimits generation_limits(const evaluation::Generation& generation) {
  return {.sampling = {.temperature = generation.temperature,
                       .top_p = generation.top_p,
                       .repetition_penalty = generation.repetition_penalty},
          .max_new_tokens = generation.max_new_tokens};
}

}  // namespace allot::app
