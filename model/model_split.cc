#include "model/model_split.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/error.h"
#include "base/round_up.h"

namespace allot::model {

void check_split(const ModelConfig& config, const kernels::AttentionMethod& method, int32_t ranks) {
  if (ranks == 1) return;
  const auto refuse = [&](const auto&... parts) {
    throw Unsupported(fmt::format("a model over {} devices: ", ranks) + fmt::format(parts...));
  };
  if (config.sub_norms || config.ternary) {
    refuse(fmt::runtime("{} rounds and norms whole rows, of which each device would have a part; run it on "
                        "one device"),
           config.architecture_name);
  }
  if (config.num_kv_heads % ranks != 0) {
    refuse(
        fmt::runtime("{} KV heads cannot be shared out evenly; take a number of devices that divides them"),
        config.num_kv_heads);
  }
  if (config.intermediate_size % ranks != 0) {
    refuse(fmt::runtime("intermediate_size {} cannot be shared out evenly; take a number of devices that "
                        "divides it"),
           config.intermediate_size);
  }
  if (method.estimator == kernels::Estimator::kPooled) {
    refuse(
        fmt::runtime("under pooled the heads of a layer share its value rows, and each device would have "
                     "some of the heads; use joint or level, or one device"));
  }
}

ModelConfig config_of_rank(const ModelConfig& config, int32_t ranks) {
  ModelConfig of_rank = config;
  of_rank.num_q_heads /= ranks;
  of_rank.num_kv_heads /= ranks;
  of_rank.intermediate_size /= ranks;
  return of_rank;
}

VocabularyPart vocabulary_part(int32_t vocab_size, const ModelSplit& split) {
  const int32_t stride = static_cast<int32_t>(round_up((vocab_size + split.ranks - 1) / split.ranks, 8));
  const int32_t first = std::min(vocab_size, split.rank * stride);
  return {.first = first, .count = std::min(stride, vocab_size - first), .stride = stride};
}

}  // namespace allot::model
