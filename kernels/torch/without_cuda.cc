#include "base/error.h"
#include "kernels/torch/cuda_tensors.h"

namespace allot::kernels {
namespace {

[[noreturn]] void refuse() {
  throw Unsupported(
      "attention: the tensors are on a GPU, but this operator library was built without CUDA; build it with "
      "-DALLOT_WITH_CUDA=ON, or move the tensors to the CPU");
}

}  // namespace

void launch_cuda(const AttentionParams& /*params*/, const LaunchBounds& /*bounds*/,
                 const at::Tensor& /*query*/, const at::Tensor& /*workspace*/) {
  refuse();
}

int64_t workspace_bytes_cuda(const AttentionParams& /*params*/, const LaunchBounds& /*bounds*/,
                             const at::Tensor& /*query*/) {
  refuse();
}

void store_value_norms_cuda(const ValueNormsParams& /*params*/, const at::Tensor& /*values*/) {
  refuse();
}

void reset_workspace_cuda(const at::Tensor& /*workspace*/) {
  refuse();
}

void check_workspace_cuda(const at::Tensor& /*workspace*/) {
  refuse();
}

}  // namespace allot::kernels
