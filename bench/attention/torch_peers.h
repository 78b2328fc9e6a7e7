// The torch side of the benchmark: the random batch, its copies in every cache layout, and the exact
// attention of PyTorch that allot is measured against. No LibTorch type shows here.
//
// cuDNN is not measured on ragged batches that lie packed: on an H200 (driver 580.159, torch 2.11, cuDNN
// 9.19) that call did not return. A ragged batch is padded for cuDNN.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/attention/pages.h"
#include "bench/attention/shapes.h"

namespace allot::bench::attention {

// LibTorch with its CUDA backends, which the build does not link: libtorch_cuda.so is loaded from the
// directory of the libtorch_cpu.so that is already there. One at a time, used by the thread that made it;
// first of all torch calls.
class TorchRuntime {
 public:
  // Throws NotFound when libtorch_cuda.so or what it needs cannot be loaded, CudaError when it finds no
  // device. Makes a stream of its own LibTorch's current one until destruction.
  TorchRuntime();
  ~TorchRuntime();
  TorchRuntime(const TorchRuntime&) = delete;
  TorchRuntime& operator=(const TorchRuntime&) = delete;

  cudaStream_t stream() const;
  std::string torch_version() const;
  std::string cudnn_version() const;
  std::string cuda_runtime_version() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Keys and values in pages, as attention.h wants them.
struct KvPages {
  const void* keys = nullptr;    // [num_pages, num_kv_heads, page_size, head_dim]
  const void* values = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim]
};

// How far an output is from the exact one.
struct Difference {
  double rms = 0;  // root of the mean squared difference of an element
  // Largest difference of a row over the row's largest exact value; rows are query heads.
  double max_relative = 0;
};

// An exact kernel of PyTorch over the batch.
struct Peer {
  std::string name;             // "flash-attention"
  std::string cache;            // layout of keys and values
  std::function<void()> queue;  // queues one call on the runtime's stream; keeps its output until the next
  std::function<Difference(const void* exact)> difference;  // of the latest output; waits for it
};

// Query, keys and values of one shape, normal random numbers made on the GPU: scores have standard deviation
// `score_deviation`. Memory belongs to this object and is given back to the device with it.
class TorchBatch {
 public:
  // `runtime` outlives the batch.
  TorchBatch(const TorchRuntime& runtime, const Shape& shape, std::span<const int32_t> lengths,
             kernels::DType dtype, double score_deviation);
  ~TorchBatch();
  TorchBatch(const TorchBatch&) = delete;
  TorchBatch& operator=(const TorchBatch&) = delete;

  // [batch, num_q_heads, head_dim]
  const void* query() const;
  // The same keys and values by `plan`; slots without a token hold NaN, so that a kernel that reads one shows
  // it.
  KvPages pages(const PagePlan& plan);
  // Every exact kernel that handles the shape, in its cache layouts. Valid while the batch lives.
  std::vector<Peer> peers();
  // Of an output [batch, num_q_heads, head_dim] on the device; waits for the stream. NaN where either is.
  Difference difference(const void* output, const void* exact) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace allot::bench::attention
