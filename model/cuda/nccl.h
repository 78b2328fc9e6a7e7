// Collectives of several CUDA devices in one process through NCCL, which no target links: libnccl.so.2 is
// that of LibTorch's CUDA part, or else the one that the loader finds, when a model is first spread over
// devices.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/collective.h"

namespace allot::model::cuda {

// The collectives of all ranks; they are used from one thread a rank, whose current device is the rank's.
// Sums of few numbers go from device to device where these write each other's memory (peer_sums.h), all else
// through NCCL. Which algorithm NCCL takes depends on the sizes and the machine, and with it the order of a
// sum, but not from run to run. Graphs that were captured with a collective must end before this.
class NcclGroup {
 public:
  // Rank r is on CUDA device devices[r]; no device twice. Connects them; some seconds, and some hundreds of
  // MiB on each device. Throws Unsupported where the build has no NCCL headers, NotFound where there is no
  // library, CudaError with NCCL's reason when it cannot connect.
  explicit NcclGroup(std::span<const int> devices);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Collective& of_rank(int32_t rank);

  // Ends every operation that waits for a rank, whatever it leaves behind; all later ones throw CudaError.
  // May be called from any thread.
  void abort();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model::cuda
