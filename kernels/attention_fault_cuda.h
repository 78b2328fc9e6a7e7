// What attention on a CUDA GPU found wrong with the content of launches, for callers that queue more launches
// before they look. check_cuda of attention_cuda.h queues the copy, waits and throws in one call.
#pragma once

#include <cstdint>

#include "kernels/attention_cuda.h"

namespace allot::kernels {

// As the device writes it: the first fault since the workspace was reset. Numbers are those of throw_fault's
// message.
struct AttentionFault {
  int32_t code = 0;  // 0 = none
  int32_t tile = 0;
  int64_t sequence = 0;
  int64_t value = 0;
  int64_t limit = 0;
};

// Queues a copy of the workspace's fault to `fault`, page-locked host memory that outlives the copy. The
// fault stays in the workspace, also for later copies, until reset_cuda_workspace. Throws InvalidArgument for
// a workspace that is too small or misaligned, CudaError when the copy is refused.
void copy_fault_cuda(CudaWorkspace workspace, AttentionFault* fault, CudaStream stream);

// Throws InvalidArgument naming sequence and value, unless there is no fault.
void throw_fault(const AttentionFault& fault);

}  // namespace allot::kernels
