// Random weights made on a CUDA device, by the formula of model/random_weights.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/estimator.h"
#include "model/random_weights.h"

namespace allot::model::cuda {

// Queues on `stream` the writing of elements first, first + 1, … first + count - 1 of `tensor` to the device
// memory `out` as `dtype`, rounded to nearest even: the bits of fill_random and, as bfloat16, of
// fill_random_bfloat16. count >= 0. `out` is aligned for its elements; 16 bytes a store where element 8 k,
// for any k, is aligned to 16 bytes. Throws CudaError when the launch is refused.
void fill_random_cuda(const RandomTensor& tensor, uint64_t first, int64_t count, kernels::DType dtype,
                      void* out, cudaStream_t stream);

// The same of the first `count` elements of the runs.
void fill_random_runs_cuda(const RandomTensor& tensor, const ElementRuns& runs, int64_t count,
                           kernels::DType dtype, void* out, cudaStream_t stream);

}  // namespace allot::model::cuda
