// Memory, streams and events of a CUDA device as C++ values, for the part of the model runtime that uses
// CUDA. Every call of the CUDA runtime there goes through check().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace allot::model::cuda {

// Throws CudaError naming `what` and the runtime's reason unless `status` is success.
void check(cudaError_t status, const char* what);

// Where a buffer lies: on the device, or on the host, page-locked, so that copies to and from it run
// beside the host.
enum class Memory { kDevice, kPinned };

// Uninitialised memory of one kind, aligned to 256 bytes.
template <Memory kMemory>
class CudaBuffer {
 public:
  CudaBuffer() = default;
  // `bytes` >= 0; 0 gives an empty buffer. Throws Error with the size and the free bytes when device memory
  // does not fit, CudaError for any other failure.
  explicit CudaBuffer(int64_t bytes);
  ~CudaBuffer();
  CudaBuffer(CudaBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  CudaBuffer& operator=(CudaBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};
template <>
CudaBuffer<Memory::kDevice>::CudaBuffer(int64_t bytes);
template <>
CudaBuffer<Memory::kDevice>::~CudaBuffer();
template <>
CudaBuffer<Memory::kPinned>::CudaBuffer(int64_t bytes);
template <>
CudaBuffer<Memory::kPinned>::~CudaBuffer();
using DeviceBuffer = CudaBuffer<Memory::kDevice>;
using PinnedBuffer = CudaBuffer<Memory::kPinned>;

// A stream of the current device that does not wait for the default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const { return stream_; }
  // Waits for everything queued; throws CudaError when something failed.
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

// A place in a stream that the host can wait for.
class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  // Moves it behind everything queued so far.
  void record(cudaStream_t stream);
  // Waits until the device is there; returns at once where it was never recorded. Throws CudaError when
  // something before it failed.
  void synchronize() const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace allot::model::cuda
