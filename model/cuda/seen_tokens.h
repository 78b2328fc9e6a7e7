// Which tokens the sequence in each slot has seen, on the device. Sequences that begin are gathered on the
// host and told to the device together, in front of the next pass.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernels/attention_cuda.h"
#include "model/cuda/device_memory.h"

namespace allot::model::cuda {

class SeenTokens {
 public:
  // Memory on the current device; the stream clears it.
  SeenTokens(int32_t slots, int32_t vocab_size, cudaStream_t stream);

  // A sequence begins in the slot, which forgets what its last one has seen. The device is not told yet.
  void open(int32_t slot, std::span<const int32_t> prompt);
  // Queues what open() gathered. Does not wait for what runs on the stream, unless prompts are longer in sum
  // than ever before.
  void queue(const kernels::DeviceLimits& limits, cudaStream_t stream);

  // [slots, kernels::seen_words(vocab_size)]
  uint32_t* data() const { return seen_.as<uint32_t>(); }
  int32_t slots() const { return slots_; }

 private:
  int32_t slots_;
  int32_t vocab_size_;
  DeviceBuffer seen_;
  std::map<int32_t, std::vector<int32_t>> opened_;  // prompts by slot
  PinnedBuffer staging_;                            // ids of the prompts, then the slot of each
  DeviceBuffer prompts_;                            // the same
  Event sent_;
};

}  // namespace allot::model::cuda
