#include "bench/attention/cold_timer.h"

#include <algorithm>
#include <optional>

#include "bench/attention/memory_kernels.h"
#include "bench/attention/report.h"

namespace allot::bench::attention {
namespace {

constexpr int kCallsBeforeCapture = 3;
// Larger than any cache by far, small enough for every GPU with this much memory free.
constexpr size_t kReadBytes = size_t{2} << 30;

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "create a CUDA event"); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "record a CUDA event"); }
  void wait() const { check(cudaEventSynchronize(event_), "wait for a timed run"); }
  double microseconds_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "read the time between two CUDA events");
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What `queue` puts on a stream, as a graph that can be launched again and again.
class CapturedCall {
 public:
  // Throws what `queue` throws and CudaError; the stream is out of capture mode again either way.
  CapturedCall(cudaStream_t stream, const std::function<void()>& queue) {
    // Relaxed: a library may still allocate or create a handle, which a stricter mode would refuse.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "begin the capture of a CUDA graph");
    cudaGraph_t graph = nullptr;
    try {
      queue();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      (void)cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "end the capture of a CUDA graph");
    size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(graph, nullptr, &nodes);
    if (error == cudaSuccess && nodes > 0) error = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(error, "instantiate a CUDA graph");
    if (nodes == 0)
      throw CudaError("the captured graph is empty: the call queued its work on another stream");
  }
  ~CapturedCall() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
  }
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "launch a CUDA graph");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

ColdTimer::ColdTimer(cudaStream_t stream, Repetitions repetitions)
    : stream_(stream), repetitions_(repetitions), flushed_(kFlushedBytes), sink_(sizeof(uint32_t)) {
  check(cudaMemsetAsync(flushed_.data(), 0, flushed_.size(), stream),
        "clear the memory touched before each run");
}

Timings ColdTimer::time(const std::function<void()>& queue) const {
  for (int call = 0; call < kCallsBeforeCapture; ++call) queue();
  check(cudaStreamSynchronize(stream_), "run the call to be timed");
  Timings timings;
  std::optional<CapturedCall> captured;
  try {
    captured.emplace(stream_, queue);
  } catch (const std::exception& error) {
    timings.why_no_graph = error.what();
  }
  if (captured) {
    timings.microseconds = time_launches([&] { captured->launch(stream_); });
  } else {
    timings.microseconds = time_launches(queue);
  }
  return timings;
}

std::vector<double> ColdTimer::time_launches(const std::function<void()>& launch) const {
  const Event start;
  const Event end;
  std::vector<double> microseconds;
  for (int32_t run = 0; run < repetitions_.warmups + repetitions_.runs; ++run) {
    // The flush takes longer than the host needs to queue the rest, so the GPU never waits for the host
    // between the two events.
    flush();
    start.record(stream_);
    launch();
    end.record(stream_);
    end.wait();
    if (run >= repetitions_.warmups) microseconds.push_back(end.microseconds_since(start));
  }
  return microseconds;
}

void ColdTimer::flush() const {
  constexpr auto kCount = kFlushedBytes / static_cast<int64_t>(sizeof(float));
  auto* const data = static_cast<float*>(flushed_.data());
  if (repetitions_.flush == Flush::kUpdate) {
    queue_touch(data, kCount, stream_);
  } else {
    queue_touch_by_reading(data, kCount, static_cast<uint32_t*>(sink_.data()), stream_);
  }
}

double ColdTimer::read_bandwidth() const {
  size_t free = 0;
  size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for the free device memory");
  const size_t bytes = std::min(kReadBytes, free / 2 / 4096 * 4096);
  const DeviceBytes data(bytes);
  check(cudaMemsetAsync(data.data(), 1, bytes, stream_), "fill the memory to be read");
  const Timings timings = time([&] {
    queue_read(data.data(), static_cast<int64_t>(bytes), static_cast<uint32_t*>(sink_.data()), stream_);
  });
  return static_cast<double>(bytes) * 1e6 / spread_of(timings.microseconds).median;
}

}  // namespace allot::bench::attention
