#include "model/cuda/chosen_tokens.h"

#include <cuda_runtime.h>

#include <cassert>

namespace allot::model::cuda {
namespace {

constexpr int64_t kTokenBytes = sizeof(int32_t);
constexpr int64_t kFaultBytes = sizeof(kernels::AttentionFault);

}  // namespace

ChosenTokens::ChosenTokens(int64_t rows) : rows_(rows), tokens_(rows * kTokenBytes) {
  for (Copy& copy : copies_) copy.memory = PinnedBuffer(kFaultBytes + rows * kTokenBytes);
}

void ChosenTokens::send(int64_t count, kernels::CudaWorkspace workspace, cudaStream_t stream) {
  assert(count <= rows_);
  assert(sent_ - taken_ < kPasses);
  Copy& copy = copies_[sent_ % kPasses];
  copy.count = count;
  kernels::copy_fault_cuda(workspace, copy.memory.as<kernels::AttentionFault>(), stream);
  if (count > 0) {
    check(cudaMemcpyAsync(copy.memory.data() + kFaultBytes, tokens_.data(), count * kTokenBytes,
                          cudaMemcpyDeviceToHost, stream),
          "cudaMemcpyAsync");
  }
  copy.arrived.record(stream);
  ++sent_;
}

ChosenTokens::Taken ChosenTokens::take() {
  assert(taken_ < sent_);
  const Copy& copy = copies_[taken_++ % kPasses];
  copy.arrived.synchronize();
  return {.tokens = {reinterpret_cast<const int32_t*>(copy.memory.data() + kFaultBytes),
                     static_cast<size_t>(copy.count)},
          .fault = *copy.memory.as<kernels::AttentionFault>()};
}

}  // namespace allot::model::cuda
