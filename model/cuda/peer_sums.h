// Sums of few numbers over CUDA devices that write each other's memory (kernels/peer_sum_cuda.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"
#include "kernels/peer_sum_cuda.h"
#include "kernels/rows.h"
#include "model/cuda/device_memory.h"

namespace allot::model::cuda {

class PeerSums {
 public:
  // Rank r is on CUDA device devices[r]; no device twice. Null where there is no kernel for so many, or where
  // one of them cannot write another's memory. Throws CudaError when they cannot be connected all the same.
  static std::unique_ptr<PeerSums> connect(std::span<const int> devices);

  // As those of Collective, called with the rank's device current. False, with nothing queued, where there is
  // no kernel for so many numbers.
  bool sum(int32_t rank, void* data, int64_t count, kernels::DType dtype, kernels::CudaStream stream);
  bool sum_and_normalise(int32_t rank, const kernels::RmsNormParams& norm, kernels::CudaStream stream);
  // Ends every sum that waits for a rank; what it and later ones leave means nothing. From any thread.
  void stop();

 private:
  explicit PeerSums(std::span<const int> devices);
  int32_t ranks() const { return static_cast<int32_t>(mailboxes_.size()); }
  kernels::PeerSumParams of_rank(int32_t rank) const;

  std::vector<kernels::DeviceLimits> limits_;
  std::vector<DeviceBuffer> mailboxes_;
  PinnedBuffer stop_;
};

}  // namespace allot::model::cuda
