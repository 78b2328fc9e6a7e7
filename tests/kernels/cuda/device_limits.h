// Limits of a GPU for tests that run without one.
#pragma once

#include "kernels/attention_cuda.h"

namespace allot::kernels {

inline constexpr DeviceLimits kH200{
    .compute_capability = 90, .multiprocessors = 132, .shared_bytes_per_block = 227 * 1024};

}  // namespace allot::kernels
