#include "bench/attention/device.h"
#include "bench/attention/memory_kernels.h"

namespace allot::bench::attention {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;  // 2048 threads, as many as one holds
constexpr int kLoadsInFlight = 8;  // per thread, 16 bytes each: enough to cover the latency of memory

__global__ void __launch_bounds__(kThreads) touch(float4* data, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    float4 value = data[i];
    value.x = value.x * 0.5f + 1.0f;
    value.y = value.y * 0.5f + 1.0f;
    value.z = value.z * 0.5f + 1.0f;
    value.w = value.w * 0.5f + 1.0f;
    data[i] = value;
  }
}

template <bool kLeavesFirst>
__global__ void __launch_bounds__(kThreads) read(const uint4* data, int64_t count, uint32_t* sink) {
  const auto load = [&](int64_t i) { return kLeavesFirst ? __ldcs(data + i) : __ldcg(data + i); };
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  uint32_t folded = 0;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kLoadsInFlight - 1) * stride < count; i += kLoadsInFlight * stride) {
    uint4 values[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) values[j] = load(i + j * stride);
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) folded ^= values[j].x ^ values[j].y ^ values[j].z ^ values[j].w;
  }
  for (; i < count; i += stride) {
    const uint4 value = load(i);
    folded ^= value.x ^ value.y ^ value.z ^ value.w;
  }
  // One chance in 2^32 a thread, harmless.
  if (folded == 0x9E3779B9u) *sink = folded;
}

int resident_blocks() {
  int device = 0;
  int multiprocessors = 0;
  check(cudaGetDevice(&device), "ask for the current device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "ask for the number of multiprocessors");
  return multiprocessors * kBlocksPerMultiprocessor;
}

}  // namespace

void queue_touch(float* data, int64_t count, cudaStream_t stream) {
  touch<<<resident_blocks(), kThreads, 0, stream>>>(reinterpret_cast<float4*>(data), count / 4);
  check(cudaGetLastError(), "launch the cache flush");
}

void queue_touch_by_reading(const float* data, int64_t count, uint32_t* sink, cudaStream_t stream) {
  // In their turn, or they would displace each other and not what is to be written.
  read<false>
      <<<resident_blocks(), kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(data), count / 4, sink);
  check(cudaGetLastError(), "launch the cache flush that reads");
}

void queue_read(const void* data, int64_t bytes, uint32_t* sink, cudaStream_t stream) {
  read<true><<<resident_blocks(), kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                         bytes / static_cast<int64_t>(sizeof(uint4)), sink);
  check(cudaGetLastError(), "launch the read of device memory");
}

}  // namespace allot::bench::attention
