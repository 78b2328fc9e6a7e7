// A captured sequence of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "model/cuda/device_memory.h"

namespace allot::model::cuda {

class Graph {
 public:
  Graph() = default;
  ~Graph() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
  }
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }

  // Captures what `queue` queues on the stream; what runs on it meanwhile is not disturbed. Throws CudaError,
  // and what `queue` throws.
  template <class Queue>
  static Graph capture(cudaStream_t stream, Queue queue) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      queue();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    Graph result;
    const cudaError_t status = cudaGraphInstantiate(&result.executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    return result;
  }

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace allot::model::cuda
