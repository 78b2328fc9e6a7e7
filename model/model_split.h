// A model that is spread over several devices by tensor parallelism (Shoeybi and others, "Megatron-LM:
// Training Multi-Billion Parameter Language Models Using Model Parallelism", section 3): which heads, neurons
// and rows of the vocabulary each of them, a rank, has. Attention's output and the MLP's are sums over the
// ranks (collective.h). Torch-free.
#pragma once

#include <cstdint>

#include "kernels/method.h"
#include "model/model_config.h"

namespace allot::model {

// One of `ranks` ranks. The default is a model that is whole.
struct ModelSplit {
  int32_t rank = 0;  // 0 .. ranks - 1
  int32_t ranks = 1;

  bool whole() const { return ranks == 1; }
};

// Throws Unsupported, with the numbers, unless the model can be spread over so many ranks under this method:
// they divide KV heads and intermediate_size, no product needs a whole row that is spread (BitNet's norms and
// grid of eight bits), and no layer's heads share value rows beyond a KV head's (`pooled`).
void check_split(const ModelConfig& config, const kernels::AttentionMethod& method, int32_t ranks);

// The configuration of a rank's decoder: a share of the heads and of intermediate_size; the vocabulary and
// the rest are the model's. The ranks divide them (check_split).
ModelConfig config_of_rank(const ModelConfig& config, int32_t ranks);

// The part of the vocabulary whose logits a rank computes. Every rank but the last ones has `stride` rows, a
// multiple of 8; those have what is left, perhaps nothing.
struct VocabularyPart {
  int32_t first = 0;
  int32_t count = 0;
  int32_t stride = 0;
};
VocabularyPart vocabulary_part(int32_t vocab_size, const ModelSplit& split);

}  // namespace allot::model
