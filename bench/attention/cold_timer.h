// Times one call on a GPU as the S2ANTA paper does (Appendix R): memory larger than the caches is updated,
// or read where that is asked for, before each run, outside the timed region, and CUDA events stand right
// around the call. The call is captured in a CUDA graph once and the graph is what runs, as in a serving
// engine, so that the time of the host does not count.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/attention/device.h"
#include "bench/attention/report.h"

namespace allot::bench::attention {

struct Repetitions {
  int32_t warmups = 10;
  int32_t runs = 40;
  Flush flush = Flush::kUpdate;
};

struct Timings {
  std::vector<double> microseconds;  // one per run, in order
  std::string why_no_graph;          // empty where a graph ran
};

class ColdTimer {
 public:
  // Touched before each run (Appendix R: a 512 MB float32 tensor).
  static constexpr int64_t kFlushedBytes = int64_t{512} * 1000 * 1000;

  // Times work on `stream`, which is not the default stream (that one cannot be captured) and outlives the
  // timer.
  ColdTimer(cudaStream_t stream, Repetitions repetitions);

  // `queue` queues one call on the stream. It runs a few times directly before it is captured, so that what a
  // library does on a first call (choosing kernels, allocating memory) is done. A call that cannot be
  // captured is timed without a graph. Nobody allocates from LibTorch's caching allocator while this runs: a
  // captured call keeps using the temporary blocks it got. Throws what `queue` throws when it runs directly,
  // and CudaError.
  Timings time(const std::function<void()>& queue) const;

  // Bytes per second of a kernel that only reads, by the median run.
  double read_bandwidth() const;

 private:
  std::vector<double> time_launches(const std::function<void()>& launch) const;
  void flush() const;

  cudaStream_t stream_;
  Repetitions repetitions_;
  DeviceBytes flushed_;
  DeviceBytes sink_;  // of what only reads
};

}  // namespace allot::bench::attention
