// What an engine refuses before it runs anything: options, and requests that model, cache or estimator cannot
// serve. Every function throws InvalidArgument naming the values and what was expected.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/method.h"
#include "model/engine_options.h"
#include "model/fidelity.h"
#include "model/generation.h"
#include "model/model_config.h"

namespace allot::model {

// All faults at once. Also throws Unsupported for dtype float16 on the CPU, which has no kernels for it.
void check_options(const EngineOptions& options);

// Checks against an engine's model and options, whose cache_tokens are those in use; both must outlive this.
class RequestChecks {
 public:
  RequestChecks(const ModelConfig& config, const EngineOptions& options)
      : config_(&config), options_(&options) {}

  void request(const GenerationRequest& request) const;
  // A text of which logits are wanted.
  void text(std::span<const int32_t> ids, std::span<const int32_t> samples) const;
  void fidelity(std::span<const FidelityText> texts, std::span<const FidelityPair> pairs,
                FidelityMode mode) const;

 private:
  void check_ids(std::span<const int32_t> ids, std::string_view what) const;
  void check_samples(std::span<const int32_t> samples, int64_t length,
                     const kernels::AttentionMethod& method) const;
  void check_by_head(const kernels::AttentionMethod& method) const;
  void check_length(int64_t prompt, int64_t new_tokens) const;

  const ModelConfig* config_;
  const EngineOptions* options_;
};

}  // namespace allot::model
