#include "model/cpu_backend.h"

#include <cassert>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "model/kept_states.h"
#include "model/parallel.h"
#include "model/weights.h"

namespace allot::model {
namespace {

// The distinct tokens of a sequence, in the order in which they came.
class SeenTokens {
 public:
  void clear() {
    for (int32_t id : ids_) is_seen_[id] = false;
    ids_.clear();
  }
  void add(int32_t id, int32_t vocab_size) {
    if (is_seen_.empty()) is_seen_.resize(static_cast<size_t>(vocab_size));
    if (is_seen_[id]) return;
    is_seen_[id] = true;
    ids_.push_back(id);
  }
  std::span<const int32_t> ids() const { return ids_; }

 private:
  std::vector<bool> is_seen_;  // [vocab_size] for slots that were ever used, else empty
  std::vector<int32_t> ids_;
};

Decoder load_decoder(const WeightsSource& source, const ModelConfig& config, const EngineOptions& options,
                     const ModelRank& rank) {
  // The weights come first, so that an automatic cache takes its share of the memory they leave: at most
  // half, since activations and other processes need memory, too.
  DecoderWeights weights = load_weights(source, config, options.dtype, options.threads, rank.split);
  const int64_t available = available_memory_bytes();
  const KvCacheShape cache =
      plan_cache(options, config, available > 0 ? std::optional(available / 2) : std::nullopt);
  return Decoder(config, std::move(weights), cache, max_pass_tokens(options), options.threads, rank);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const WeightsSource& source, const ModelConfig& config, const EngineOptions& options,
             const ModelRank& rank)
      : vocab_size_(config.vocab_size),
        threads_(options.threads),
        decoder_(load_decoder(source, config, options, rank)),
        states_(decoder_.output_head(), options.dtype, options.threads),
        samplers_(static_cast<size_t>(options.threads)),
        seen_(static_cast<size_t>(options.max_sequences)) {
    if (options.skip_prefill) decoder_.fill_cache_at_random();
  }

  const KvCacheShape& cache_shape() const override { return decoder_.cache_shape(); }

  void open_slot(int32_t slot, std::span<const int32_t> tokens) override {
    seen_[slot].clear();
    for (int32_t id : tokens) seen_[slot].add(id, vocab_size_);
  }

  int32_t max_submitted() const override { return 1; }

  void submit(const ForwardBatch& batch, const kernels::AttentionMethod& attention,
              std::span<const TokenChoice> choices) override {
    assert(choices.size() == batch.output_rows.size());
    assert(batch.chosen_before.empty());
    const std::span<float> logits = decoder_.forward(batch, attention);
    chosen_.resize(choices.size());
    run_parallel(static_cast<int64_t>(choices.size()), threads_, [&](int64_t i, int worker) {
      const TokenChoice& choice = choices[i];
      const DrawRow draw{.key = choice.draws.key,
                         .question = choice.draws.question,
                         .layer = kTokenLayer,
                         .head = 0,
                         .position = choice.position};
      chosen_[i] = samplers_[worker].choose(logits.subspan(i * vocab_size_, vocab_size_), choice.sampling,
                                            seen_[choice.slot].ids(), draw);
    });
    for (size_t i = 0; i < choices.size(); ++i) {
      if (chosen_[i] >= 0) seen_[choices[i].slot].add(chosen_[i], vocab_size_);
    }
  }

  // submit() has waited.
  std::span<const int32_t> take() override { return chosen_; }

  std::span<const float> logits(const ForwardBatch& batch,
                                const kernels::AttentionMethod& attention) override {
    return decoder_.forward(batch, attention);
  }

  bool count_rows(std::span<int64_t> by_layer) override {
    decoder_.count_rows(by_layer);
    return true;
  }

  void reserve_states(int64_t rows) override { states_.reserve(rows); }

  void keep_states(const ForwardBatch& batch, const kernels::AttentionMethod& attention, int64_t first_state,
                   std::span<int64_t> rows_read) override {
    decoder_.forward_states(batch, attention, states_.row(first_state), rows_read);
  }

  void compare_states(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                      std::span<kernels::RowDivergence> out) override {
    states_.compare(dense, sampled, rows, out);
  }

 private:
  int32_t vocab_size_;
  int threads_;
  Decoder decoder_;
  KeptStates states_;
  std::vector<TokenSampler> samplers_;  // [threads]
  std::vector<SeenTokens> seen_;        // [max_sequences]
  std::vector<int32_t> chosen_;         // of the pass submitted last
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const WeightsSource& source, const ModelConfig& config,
                                          const EngineOptions& options) {
  return std::make_unique<CpuBackend>(source, config, options, ModelRank{});
}

std::unique_ptr<Backend> make_cpu_rank(const WeightsSource& source, const ModelConfig& config,
                                       const EngineOptions& options, const ModelSplit& split,
                                       Collective& collective) {
  return std::make_unique<CpuBackend>(source, config_of_rank(config, split.ranks), options,
                                      ModelRank{.split = split, .collective = &collective});
}

}  // namespace allot::model
