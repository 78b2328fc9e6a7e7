// What the operators of binding.cc do with CUDA tensors, on PyTorch's current stream of the tensors' device:
// cuda_tensors.cc, or without_cuda.cc in a build without CUDA, where each throws Unsupported.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/rows.h"

namespace allot::kernels {

// attend_cuda, cuda_workspace_bytes, reset_cuda_workspace and check_cuda (attention_cuda.h), on the device of
// `query` or of `workspace`, a contiguous uint8 tensor.
void launch_cuda(const AttentionParams& params, const LaunchBounds& bounds, const at::Tensor& query,
                 const at::Tensor& workspace);
int64_t workspace_bytes_cuda(const AttentionParams& params, const LaunchBounds& bounds,
                             const at::Tensor& query);
// store_value_norms_cuda (rows_cuda.h), on the device of `values`.
void store_value_norms_cuda(const ValueNormsParams& params, const at::Tensor& values);
void reset_workspace_cuda(const at::Tensor& workspace);
void check_workspace_cuda(const at::Tensor& workspace);

}  // namespace allot::kernels
