#include "model/cuda/graph.h"

#include <cuda_runtime.h>

#include "model/cuda/device_memory.h"

namespace allot::model::cuda {

Graph::~Graph() {
  if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
}

Graph Graph::capture(cudaStream_t stream, const std::function<void()>& queue) {
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

void Graph::launch(cudaStream_t stream) const {
  check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
}

}  // namespace allot::model::cuda
