// Runs the model for an engine: weights, KV cache and choice of tokens, on one device or spread over several
// (split_backend.h). The engine decides which sequences run, on which pages and until when. A backend does
// one forward pass after the other, in the order in which they were handed over, and keeps of each sequence
// only its keys and values in the cache and the tokens it has seen. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/attention.h"
#include "kernels/rows.h"
#include "model/attention_plan.h"
#include "model/engine_options.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/sampling.h"
#include "model/weights_source.h"

namespace allot::model {

// How the token after an output row is chosen.
struct TokenChoice {
  int32_t slot = 0;  // 0 .. max_sequences - 1, where the sequence's seen tokens are kept
  SamplingParams sampling = {};
  kernels::SequenceDraws draws = {};
  uint32_t position = 0;  // of the last token before it (DrawRow::position)
};

// Not for use by several threads at once. A pass has at most max_pass_tokens(options) new tokens, in submit()
// at most max_sequences output rows.
//
// Calls take effect in their order: what a pass writes to pages and slots is there for the passes submitted
// behind it, and none of it disturbs those before. So pages and slots may go to another sequence as soon as
// the last pass with the previous one is submitted, whether that pass has ended or not.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const KvCacheShape& cache_shape() const = 0;

  // Starts a sequence in the slot, or one over again: forgets the tokens that were seen there, and counts
  // `tokens` as seen.
  virtual void open_slot(int32_t slot, std::span<const int32_t> tokens) = 0;

  // How many passes may be submitted and not yet taken: 1, or 2 where the device runs one while the host
  // prepares the next.
  virtual int32_t max_submitted() const = 0;

  // Hands over one forward pass, which writes keys and values of the new tokens to the cache and chooses a
  // token for every output row; choices[i] belongs to batch.output_rows[i], and no two have the same slot.
  // The chosen tokens count as seen. A token of the batch may be one that the pass submitted before this one
  // chooses (ForwardBatch::chosen_before), unless max_submitted() is 1. May return before the pass has ended.
  virtual void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                      std::span<const TokenChoice> choices) = 0;

  // Waits for the oldest pass that was submitted and not taken, of which there must be one. Returns its
  // chosen tokens, [output_rows.size()], -1 where a logit of the row was not a number; valid until the next
  // call. Throws CudaError when the device failed, InvalidArgument when attention found content that
  // contradicts the batch; the pass counts as taken then.
  virtual std::span<const int32_t> take() = 0;

  // Waits until every pass submitted has ended; they remain to be taken.
  virtual void wait() {}

  // A pass without a choice: float32 logits [output_rows.size(), vocab_size], valid until the next call. This
  // and what follows may be called while passes are submitted and not taken.
  virtual std::span<const float> logits(const ForwardBatch& batch,
                                        const kernels::AttentionMethod& attention) = 0;

  // From now on passes add the value rows that each layer reads to `by_layer` [num_layers], which must
  // outlive this. False where the device does not count them.
  virtual bool count_rows(std::span<int64_t> /*by_layer*/) { return false; }

  // What fidelity (fidelity.h) needs: hidden states, from which logits are made only block by block. They
  // stay on the device until their rows are written again or reserve_states() is called.

  // Makes room for `rows` hidden states; what was kept is lost. Throws Error when the memory does not fit.
  virtual void reserve_states(int64_t rows) = 0;

  // The same pass up to the final norm, at its end when this returns: the hidden state of output row i is
  // kept as row first_state + i. Adds to `rows_read` [batch] the value rows that attention read, as
  // AttentionParams has it; empty = not counted.
  virtual void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
                           int64_t first_state, std::span<int64_t> rows_read) = 0;

  // Compares the logits of `rows` kept states with those of others: out[i * rows + r] says how those of row
  // sampled[i] + r diverge from those of row dense + r. Logits of a dense row are computed once for all i.
  virtual void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                              std::span<kernels::RowDivergence> out) = 0;
};

// The backend of options.device, with its weights loaded and its cache made. `options` are checked and have
// their threads resolved. Throws Unsupported for a CUDA device in a build without CUDA, and the errors of
// make_cpu_backend or make_cuda_backend.
std::unique_ptr<Backend> make_backend(const WeightsSource& source, const ModelConfig& config,
                                      const EngineOptions& options);

}  // namespace allot::model
