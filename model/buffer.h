// Zeroed, page-aligned memory taken from the system as one mapping: weights, activations and the KV cache.
// Pages take no memory until they are written, so a cache may be sized for the worst case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace allot::model {

class Buffer {
 public:
  Buffer() = default;
  // `bytes` >= 0; 0 gives an empty buffer. Throws Error with the size and the system's reason when
  // the mapping fails.
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Bytes that this process can still use without swapping: the smaller of the machine's MemAvailable and what
// the memory cgroup leaves. 0 when neither is known.
int64_t available_memory_bytes();

}  // namespace allot::model
