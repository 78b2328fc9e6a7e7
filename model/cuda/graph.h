// A captured sequence of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

namespace allot::model::cuda {

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }

  // Captures what `queue` queues on the stream; what runs on it meanwhile is not disturbed. Throws CudaError,
  // and what `queue` throws.
  static Graph capture(cudaStream_t stream, const std::function<void()>& queue);

  // Queues the kernels on the stream. Throws CudaError.
  void launch(cudaStream_t stream) const;

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace allot::model::cuda
