// Times work on the current GPU over warm caches: median, least and most of a few runs between two events.
// (cold_timer.h times over cold ones.)
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/quantile.h"
#include "bench/attention/device.h"

namespace allot::bench {

struct WarmTimes {
  double median = 0, least = 0, most = 0;  // microseconds
};

class StreamTimer {
 public:
  // Runs before the first that counts, and those that count.
  StreamTimer(int warmups, int runs) : warmups_(warmups), runs_(runs) {
    attention::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
    attention::check(cudaEventCreate(&start_), "create an event");
    attention::check(cudaEventCreate(&end_), "create an event");
  }
  ~StreamTimer() {
    (void)cudaEventDestroy(start_);
    (void)cudaEventDestroy(end_);
    (void)cudaStreamDestroy(stream_);
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;

  // What is timed is queued on this stream, which is not the default one.
  cudaStream_t stream() const { return stream_; }

  // Times what `queue` queues; the time of the host counts where it is the longer one. `what` names the work
  // in errors. Throws CudaError and what `queue` throws.
  WarmTimes time(const std::string& what, const std::function<void()>& queue) const {
    std::vector<double> microseconds;
    for (int run = 0; run < warmups_ + runs_; ++run) {
      float milliseconds = 0;
      attention::check(cudaEventRecord(start_, stream_), "record an event");
      queue();
      attention::check(cudaEventRecord(end_, stream_), "record an event");
      attention::check(cudaEventSynchronize(end_), "run " + what);
      attention::check(cudaEventElapsedTime(&milliseconds, start_, end_), "read the time between two events");
      if (run >= warmups_) microseconds.push_back(1e3 * static_cast<double>(milliseconds));
    }
    const auto [least, most] = std::ranges::minmax(microseconds);
    return {.median = quantile(microseconds, 0.5), .least = least, .most = most};
  }

  // The time of one of `calls` calls that follow each other in a CUDA graph; `queue` queues the call of the
  // number it gets, call 0 once directly before.
  WarmTimes time_in_graph(const std::string& what, int64_t calls,
                          const std::function<void(int64_t call)>& queue) const {
    queue(0);
    attention::check(cudaStreamSynchronize(stream_), "run " + what);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    attention::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                     "begin the capture of a CUDA graph");
    for (int64_t call = 0; call < calls; ++call) queue(call);
    attention::check(cudaStreamEndCapture(stream_, &graph), "end the capture of a CUDA graph");
    attention::check(cudaGraphInstantiate(&executable, graph, 0), "instantiate a CUDA graph");
    const WarmTimes times =
        time(what, [&] { attention::check(cudaGraphLaunch(executable, stream_), "launch a CUDA graph"); });
    attention::check(cudaGraphExecDestroy(executable), "destroy a CUDA graph");
    attention::check(cudaGraphDestroy(graph), "destroy a CUDA graph");
    const auto each = static_cast<double>(calls);
    return {.median = times.median / each, .least = times.least / each, .most = times.most / each};
  }

 private:
  int warmups_, runs_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace allot::bench
