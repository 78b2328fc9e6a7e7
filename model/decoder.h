// One forward pass of a decoder (model_config.h lists the architectures) over a ragged batch of new tokens,
// on the paged KV cache. Prefill chunks, decode steps and teacher forcing are the same call. The engine
// decides which requests run and which token follows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "model/attention_plan.h"
#include "model/buffer.h"
#include "model/collective.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/model_split.h"
#include "model/rope.h"
#include "model/weights.h"

namespace allot::model {

class Decoder {
 public:
  // A pass may have up to `max_tokens` new tokens. `config` is that of the rank (config_of_rank), and
  // `weights` are its own, but for the output head, which is whole.
  Decoder(const ModelConfig& config, DecoderWeights weights, const KvCacheShape& cache, int64_t max_tokens,
          int threads, const ModelRank& rank = {});

  const KvCacheShape& cache_shape() const { return cache_.shape(); }

  // Fills the cache with random numbers of mean 0 and standard deviation 1, as if all its pages were in use.
  void fill_cache_at_random();

  // Writes keys and values of the new tokens to the cache and returns float32 logits [output_rows.size(),
  // vocab_size], valid until the next call. Row kernels and attention give a row the same bits in every
  // batch; docs/internals/engine.md says how far that holds for matrix products.
  std::span<float> forward(const ForwardBatch& batch, const kernels::AttentionMethod& attention);

  // The same pass up to the final norm: writes the hidden states of the output rows, [output_rows.size(),
  // hidden_size] of the cache's dtype, to `states`, from which output_head() makes logits. `rows_read`
  // [batch] grows by the value rows that attention read, as in AttentionParams; empty = not counted.
  void forward_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, std::byte* states,
                      std::span<int64_t> rows_read);

  // From now on each pass adds to `by_layer` [num_layers] the value rows that its layers read, as in
  // AttentionParams, of all sequences together; empty = not counted.
  void count_rows(std::span<int64_t> by_layer) { rows_by_layer_ = by_layer; }
  const Linear& output_head() const { return weights_.output_head; }

 private:
  // Memory of one thread for one block of rows.
  struct Scratch {
    Buffer hidden;     // [block, hidden_size] normalised input of a product, or the output to be added to the
                       // residual
    Buffer gate_up;    // [block, 2 intermediate_size]
    Buffer activated;  // [block, intermediate_size]
    Buffer logits;     // [block, vocab_size], unless logits are stored directly
  };
  // Rows [begin, end) of this pass; `threads` threads work on it, 1 when several blocks run at once.
  struct Block {
    int64_t begin;
    int64_t end;
    int threads;
    Scratch& scratch;
    int64_t rows() const { return end - begin; }
  };

  // Rows of a block, counted from its begin, that one thread works on.
  struct Part {
    int64_t first;
    int64_t rows;
  };

  // A pass whose blocks of normalised output rows, in scratch.hidden, go to `finish`.
  void run(const ForwardBatch& batch, const kernels::AttentionMethod& attention, std::span<int64_t> rows_read,
           const std::function<void(const Block&)>& finish);
  // Norms of all values of a layer, as rotate_and_store would have written them.
  void set_value_norms(int32_t layer);
  void for_each_block(int64_t rows, const std::function<void(const Block&)>& work);
  void for_each_part(const Block& block, const std::function<void(const Part&)>& work) const;
  void embed(const ForwardBatch& batch, const Block& block);
  struct NormStep {
    const Buffer& weight;
    bool adds_hidden = false;  // scratch.hidden is added to the residual first
    bool int8_grid = false;    // RmsNormParams::int8_grid
  };
  void normalise(const NormStep& step, const Block& block);
  // Norms rows of `width` elements in place, for the next product of a layer.
  void normalise_rows(const Buffer& weight, const Block& block, int64_t width, std::byte* rows) const;
  // Inputs of a layer's products are on the int8 grid.
  bool int8_inputs() const { return config_.ternary.has_value(); }
  void project_qkv(int32_t layer, const ForwardBatch& batch, const Block& block);
  // Adds what every rank has computed of the block's rows of scratch.hidden.
  void sum_over_ranks(const Block& block);
  void finish_layer(int32_t layer, const Block& block);
  void project_logits(const Block& block);
  // `rows_read` [plan.runs()] or null.
  void attend_by_head(kernels::AttentionParams params,
                      std::span<const AttentionPlan::HeadBudgets> head_budgets) const;
  void attend(int32_t layer, const AttentionPlan& plan, const kernels::AttentionMethod& method,
              int64_t* rows_read);
  void keep_rows(std::span<const int64_t> rows);

  std::byte* row(Buffer& buffer, int64_t index, int64_t width) const {
    return buffer.data() + index * width * kernels::size_of(cache_.shape().dtype);
  }

  ModelConfig config_;
  DecoderWeights weights_;
  KvCache cache_;
  RopeTable rope_;
  ModelRank rank_;
  int64_t max_tokens_;
  int threads_;
  int64_t q_width_;    // num_q_heads * head_dim
  int64_t qkv_width_;  // (num_q_heads + 2 num_kv_heads) * head_dim
  bool blocks_in_parallel_;
  std::span<int64_t> rows_by_layer_;

  // Activations of the current pass. Their rows are tokens; from the last layer's attention on, only
  // the output rows.
  Buffer residual_;               // [max_tokens, hidden_size]
  Buffer qkv_;                    // [max_tokens, qkv_width]
  Buffer attended_;               // [max_tokens, q_width]
  Buffer logits_;                 // [output rows, vocab_size] float32, grown on demand
  std::vector<Scratch> scratch_;  // [threads]
};

}  // namespace allot::model
