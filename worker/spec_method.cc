#include "worker/spec_method.h"

#include "wire/messages.pb.h"

namespace allot::worker {

kernels::AttentionMethod attention_method(const wire::AttentionSpec& spec) {
  return {.estimator = kernels::parse_estimator(spec.estimator()),
          .prefill = kernels::parse_prefill(spec.prefill()),
          .tile = spec.tile(),
          .score_stage = kernels::parse_score_stage(spec.score_stage()),
          .score_budget = spec.score_budget(),
          .mean_group_query = spec.mean_group_query()};
}

wire::AttentionSpec attention_spec(const kernels::AttentionMethod& method) {
  wire::AttentionSpec spec;
  spec.set_estimator(std::string(kernels::name(method.estimator)));
  spec.set_prefill(std::string(kernels::name(method.prefill)));
  spec.set_tile(method.tile);
  spec.set_score_stage(std::string(kernels::name(method.score_stage)));
  spec.set_score_budget(method.score_budget);
  spec.set_mean_group_query(method.mean_group_query);
  return spec;
}

}  // namespace allot::worker
