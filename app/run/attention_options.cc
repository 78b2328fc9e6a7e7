#include "app/run/attention_options.h"

#include <vector>

namespace allot::app {

void declare_attention_options(OptionSet* set, AttentionOptions* options, EstimatorChoice choice) {
  std::vector<std::string> estimators = {"iid", "strat", "sys", "prop", "flash", "threshold", "topk"};
  if (choice == EstimatorChoice::kAny) estimators.insert(estimators.begin(), "exact");
  set->choice("estimator", &options->estimator, estimators, "how attention is estimated from its samples");
  set->choice("prefill", &options->prefill, {"dense", "sampled"},
              "attention over the prompt: exact, or sampled as in decoding");
  set->integer("tile", &options->tile, 1, 1 << 20, "KEYS", "keys per tile of prop and flash");
  set->choice("score-stage", &options->score_stage, {"exact", "bernoulli", "bernoulli-strat"},
              "how scores q K^T are computed");
  set->integer("score-budget", &options->score_budget, 0, 1 << 20, "B",
               "Bernoulli draws of a query (score stages other than exact)");
  set->flag("mean-group-query", &options->mean_group_query,
            "Bernoulli: draw once per head group, from its mean query");
}

}  // namespace allot::app
