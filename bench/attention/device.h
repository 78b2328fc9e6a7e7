// Device memory and error checks of the benchmark; the device is the current one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace allot::bench::attention {

// Throws CudaError: `what` says what was tried, "allocate 512 MB". Takes the error from the runtime, so that
// the next call does not report it again.
inline void check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CudaError("cannot " + what + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

// Bytes of device memory, freed with their owner.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size) : size_(size) {
    if (size > 0)
      check(cudaMalloc(&data_, size), "allocate " + std::to_string(size) + " bytes of device memory");
  }
  ~DeviceBytes() { (void)cudaFree(data_); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBytes& operator=(DeviceBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// A copy of `values` on the device; waits for it.
template <class T>
DeviceBytes to_device(std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  DeviceBytes bytes(values.size_bytes());
  check(cudaMemcpy(bytes.data(), values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
        "copy to the device");
  // The copy of a small array may still be under way, and streams made by LibTorch do not wait for the
  // default stream.
  check(cudaStreamSynchronize(nullptr), "copy to the device");
  return bytes;
}

}  // namespace allot::bench::attention
