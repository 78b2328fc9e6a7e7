// What a test queues, as a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "cuda_launch.h"

namespace allot::kernels::testing {

class CapturedGraph {
 public:
  // Captures what queue() queues to `stream`; none of it runs.
  template <class Queue>
  CapturedGraph(cudaStream_t stream, const Queue& queue) : stream_(stream) {
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin the capture");
    queue();
    require(cudaStreamEndCapture(stream, &graph_), "end the capture");
    require(cudaGraphInstantiate(&executable_, graph_, 0), "instantiate the graph");
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() {
    EXPECT_EQ(cudaGraphExecDestroy(executable_), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph_), cudaSuccess);
  }

  // Queues it.
  void launch() { require(cudaGraphLaunch(executable_, stream_), "launch the graph"); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace allot::kernels::testing
