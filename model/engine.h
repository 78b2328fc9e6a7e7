// Batched generation with a schedule per sequence: a paged KV cache, continuous batching, dense or
// sampled prefill. This header includes nothing of LibTorch, so that only files that make tensors
// compile its headers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/philox.h"
#include "model/engine_options.h"
#include "model/fidelity.h"
#include "model/generation.h"
#include "model/layer_execution.h"
#include "model/model_config.h"

namespace allot::model {

class Backend;
class WeightsSource;

// Makes what runs the model; backend.h has the one of options.device.
using BackendMaker = std::function<std::unique_ptr<Backend>(
    const WeightsSource& source, const ModelConfig& config, const EngineOptions& options)>;

// Not for use by several threads at once. Results do not depend on what else runs: a sequence's random draws
// are functions of its own coordinates, and docs/internals/engine.md says when its logits are the same to
// the bit, too.
class Engine {
 public:
  // Loads a Hugging Face directory; for random weights only its config.json is needed. Throws the errors of
  // the readers (those of Adapter::open among them) and of load_weights, Unsupported when a tensor has a
  // dtype or shape the architecture does not have (naming the tensor, found and expected), for dtype float16
  // on the CPU, which has no kernels for it, and for a device that the build does not support;
  // InvalidArgument for an option out of range.
  Engine(const std::filesystem::path& model_directory, const EngineOptions& options);
  // With a backend of the caller's making, for tests.
  Engine(const std::filesystem::path& model_directory, const EngineOptions& options,
         const BackendMaker& make_backend);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelConfig& config() const;
  const GenerationDefaults& generation_defaults() const;
  // The options as given, with device, threads and cache_tokens replaced by the values in use.
  const EngineOptions& options() const;

  // Queues a request. Throws InvalidArgument when the prompt is empty or has an id beyond the
  // vocabulary, when prompt and new tokens exceed the model's positions or the cache's capacity, when
  // `samples` has another length than layers or a value the estimator refuses, or when a sampling
  // parameter is out of range.
  void submit(GenerationRequest request);
  // Sequences queued or in flight.
  int64_t pending() const;
  // Runs on until one more forward pass has ended (a prefill chunk, or one decode step for all running
  // sequences) and returns the sequences that finished with it, none when nothing is pending. Requests are
  // admitted in order, while there are slots and pages for all their tokens, to the next pass that is handed
  // over. A GPU gets a pass while the one before runs: a request then joins one pass later, and a sequence
  // that an eos token or `stop` ends has been in one pass more, of which nothing is kept. Throws Error when
  // the model gives a logit that is not a number; its sequences are as they were before the pass then.
  std::vector<GenerationResult> step();
  // Drops the request with this id, queued or in flight; false when it is unknown. Must not be called
  // from within `stop`.
  bool cancel(uint64_t id);
  // Waits until the device has done all that step() has handed over, for those who look at the device.
  void wait_for_device();

  // Float32 logits of every position [ids.size(), vocab_size] of one teacher-forced pass. `samples` as in a
  // request; they apply at every position, in every prefill mode. Uses free pages of the cache; throws
  // InvalidArgument as submit does, or when requests in flight leave too few pages.
  std::vector<float> logits(std::span<const int32_t> ids, std::span<const int32_t> samples, DrawKey key,
                            uint32_t question);

  // How far sampled attention takes each pair's next-token distributions from those of exact attention, in
  // the order of the pairs. One exact pass a text serves all of its pairs, which share passes; their methods
  // may differ from that of the options. Uses free pages of the cache. Results depend on the text and the
  // pair alone, as far as docs/internals/engine.md says so of products. Throws InvalidArgument as logits does
  // for a text or a schedule, for a pair of a text that is not there, for a method with a parameter out of
  // range, and in kDecode for prompt_tokens outside 1 to the text's tokens; Unsupported for a method that the
  // device does not compute and a cache that it does not simulate; Error when the model gives a logit that is
  // not a finite number.
  std::vector<Fidelity> fidelity(std::span<const FidelityText> texts, std::span<const FidelityPair> pairs,
                                 const FidelityOptions& options);

  const EngineCounters& counters() const;
  // What each layer has done in the passes handed over so far, [layers] with count_execution, else empty.
  // Rows are counted on the CPU only, where passes hold no token in vain.
  std::vector<LayerExecution> execution() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model
