// Continuous batching: which sequences a backend runs, pass by pass. Host arithmetic alone; the backend knows
// neither requests nor when they end.
//
// Where the backend takes two passes, the next one is put together and submitted while one runs, so that the
// device never waits for the host. What is not known then:
// - the tokens that the running pass chooses: the next pass names them by their place (chosen_before);
// - which sequences end with them, by an eos token or `stop`. Those run once more, and that token is thrown
//   away. A sequence that ends by its length is known to, and runs no further.
// A token is a function of its sequence alone, so a row in vain changes none. Slot and pages of a sequence
// that has ended go to the next one at once, although a pass that holds it may still run: passes run in the
// order in which they were submitted (backend.h).
//
// A pass is of prompts or of replies, never of both: a decode step then has the same kernels, and on a GPU
// the same graph, whether prompts come beside it or not. With chunked prefill the two take turns while both
// wait.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "episode/finish.h"
#include "model/backend.h"
#include "model/engine_options.h"
#include "model/generation.h"
#include "model/kv_cache.h"
#include "model/layer_execution.h"
#include "model/model_config.h"

namespace allot::model {

class Scheduler {
 public:
  // Everything given outlives this.
  Scheduler(Backend& backend, PageAllocator& allocator, const EngineOptions& options,
            const ModelConfig& config, std::span<const int32_t> eos_token_ids);

  // Queues a request that has been checked.
  void add(GenerationRequest request);
  // Sequences queued or running.
  int64_t pending() const { return static_cast<int64_t>(queue_.size() + running_.size()); }
  // As Engine says.
  std::vector<GenerationResult> step();
  bool cancel(uint64_t id);

  const EngineCounters& counters() const { return counters_; }
  // [num_layers] with count_execution, else empty.
  std::vector<LayerExecution> execution() const;

 private:
  // A request and its progress. What passes do counts from when they are submitted.
  struct Sequence {
    GenerationRequest request;
    std::vector<int32_t> tokens;  // prompt and output, with a placeholder for each awaited one at the end
    OwnedPages pages;             // for all tokens that it may ever have
    int32_t slot = 0;             // while it runs
    int64_t cached = 0;           // tokens whose keys and values are in the cache
    int64_t prefill_end = 0;      // tokens before it are computed in chunks, the others one a step
    int32_t awaited = 0;          // tokens chosen by passes that have not been taken
    int32_t choice = -1;          // of its token in the last pass that chose one
    int32_t passes = 0;           // that hold it and have not been taken
    bool left = false;            // ended or cancelled; kept while passes hold it

    int64_t size() const { return static_cast<int64_t>(tokens.size()); }
    int64_t new_tokens() const { return size() - static_cast<int64_t>(request.prompt.size()); }
    std::span<const int32_t> output() const {
      return std::span(tokens).subspan(request.prompt.size(), new_tokens() - awaited);
    }
    bool in_prefill() const { return cached < prefill_end; }
  };
  using Place = std::list<Sequence>::iterator;

  // One sequence's part of a pass.
  struct Advance {
    Place sequence;
    int64_t new_tokens = 0;
    bool ready = false;  // the token after it is chosen
  };
  struct Pass {
    bool prefill = false;
    bool after_prefill = false;  // the pass submitted before it is one of prompts
    std::vector<Advance> advances;
  };

  void admit();
  // Puts the next pass together and submits it; false when there is none.
  bool submit_next();
  std::vector<Advance> next_advances();
  // Prompts that are not in the cache yet, oldest first, up to `room` tokens or one more.
  std::vector<Advance> next_prompts(int64_t room);
  // A token of every sequence that has more to come.
  std::vector<Advance> next_replies();
  std::vector<GenerationResult> take_oldest();
  std::optional<Finish> finished(const Sequence& sequence) const;
  // Frees slot and pages of a running sequence; forgets it once no pass holds it.
  void leave(Place sequence);
  // One pass less that holds it.
  void let_go(Place sequence);
  // Takes back `failed` and what was submitted behind it.
  void take_back(Pass failed);

  Backend* backend_;
  PageAllocator* allocator_;
  const EngineOptions* options_;
  const ModelConfig* config_;
  std::vector<int32_t> eos_token_ids_;
  std::vector<int32_t> free_slots_;  // a stack
  std::deque<GenerationRequest> queue_;
  std::list<Sequence> running_;  // in order of admission
  std::list<Sequence> leaving_;  // left, and held by a pass
  std::deque<Pass> submitted_;   // oldest first
  bool after_prefill_ = false;   // the pass submitted last is one of prompts
  EngineCounters counters_;
  std::vector<LayerExecution> execution_;  // [num_layers] where it is counted, but for the rows
  std::vector<int64_t> rows_read_;         // [num_layers] where the device counts them
};

}  // namespace allot::model
