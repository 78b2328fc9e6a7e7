// Kernels that only move memory: two empty the caches before a timed run, one shows how fast memory can be
// read.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace allot::bench::attention {

// Queues an update in place of `count` floats, a multiple of 4; `data` is aligned to 16 bytes.
void queue_touch(float* data, int64_t count, cudaStream_t stream);

// Queues a read of as many, which leaves no line in the caches that is still to be written. `sink` as below.
void queue_touch_by_reading(const float* data, int64_t count, uint32_t* sink, cudaStream_t stream);

// Queues a read of `bytes` bytes, a multiple of 16, by every thread that the device can hold. `sink` is one
// word that is in practice never written; it keeps the compiler from dropping the reads. What is read leaves
// L2 first.
void queue_read(const void* data, int64_t bytes, uint32_t* sink, cudaStream_t stream);

}  // namespace allot::bench::attention
