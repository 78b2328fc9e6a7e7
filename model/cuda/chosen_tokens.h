// Tokens that passes choose: on the device, where the next pass finds them, and on their way to the host
// while that pass runs.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/attention_cuda.h"
#include "kernels/attention_fault_cuda.h"
#include "model/cuda/device_memory.h"

namespace allot::model::cuda {

class ChosenTokens {
 public:
  // Passes whose tokens may be on their way at once.
  static constexpr int32_t kPasses = 2;

  // Of passes that choose at most `rows` tokens; memory on the current device.
  explicit ChosenTokens(int64_t rows);

  // [rows] where passes write their tokens.
  int32_t* on_device() const { return tokens_.as<int32_t>(); }
  int64_t rows() const { return rows_; }

  // Queues the copies of the first `count` tokens and of the workspace's fault to the host, behind the pass
  // that chose them. At most kPasses may be queued and not taken.
  void send(int64_t count, kernels::CudaWorkspace workspace, cudaStream_t stream);

  struct Taken {
    std::span<const int32_t> tokens;
    const kernels::AttentionFault& fault;
  };
  // Waits for what was sent first and not taken; valid until kPasses more are sent. Throws CudaError.
  Taken take();

 private:
  struct Copy {
    PinnedBuffer memory;  // the fault, then [rows] tokens
    Event arrived;
    int64_t count = 0;
  };

  int64_t rows_;
  DeviceBuffer tokens_;
  std::array<Copy, kPasses> copies_;
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace allot::model::cuda
