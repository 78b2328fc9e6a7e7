#include "model/cuda/device_memory.h"

#include <cuda_runtime.h>

#include <string>

#include "base/error.h"

namespace allot::model::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw CudaError(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) +
                  ")");
}

template <>
CudaBuffer<Memory::kDevice>::CudaBuffer(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // the error is reported here
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    throw Error("the GPU has no room for " + std::to_string(bytes) + " bytes: " + std::to_string(free) +
                " of its " + std::to_string(total) +
                " bytes are free; end other processes on it, or ask for less");
  }
  check(status, "cudaMalloc");
  data_ = static_cast<std::byte*>(data);
}

template <>
CudaBuffer<Memory::kDevice>::~CudaBuffer() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

template <>
CudaBuffer<Memory::kPinned>::CudaBuffer(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<size_t>(bytes)), "cudaMallocHost");
  data_ = static_cast<std::byte*>(data);
}

template <>
CudaBuffer<Memory::kPinned>::~CudaBuffer() {
  if (data_ != nullptr) (void)cudaFreeHost(data_);
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

Stream::~Stream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

void Stream::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

Event::Event() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

Event::~Event() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

void Event::record(cudaStream_t stream) {
  check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void Event::synchronize() const {
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

}  // namespace allot::model::cuda
