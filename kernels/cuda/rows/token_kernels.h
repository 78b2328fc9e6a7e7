// The interface between the checks of the token sampler (token_sampler.cc) and its kernels.
#pragma once

#include "kernels/token_sampler_cuda.h"

namespace allot::kernels::cuda {

// Largest vocabulary: a histogram's counters and a row's mass hold that many of the largest weight.
inline constexpr int32_t kMaxVocabulary = 1 << 18;
// Most blocks that may share a row. A cluster of more than 8 is not portable, but every device of compute
// capability 9.0 has it.
inline constexpr uint32_t kMaxRowBlocks = 16;

// Blocks that share a row, a power of two: many where rows are few, so that they use the whole device.
uint32_t blocks_of_row(int64_t rows, DType dtype, const DeviceLimits& limits);

// One block alone counts the values of bfloat16 logits (token_counts.cuh).
void launch_choose_tokens(const ChooseTokensParams& params, uint32_t row_blocks, const DeviceLimits& limits,
                          CudaStream stream);
void launch_feed_tokens(const FeedTokensParams& params, const DeviceLimits& limits, CudaStream stream);
void launch_mark_seen(const MarkSeenParams& params, const DeviceLimits& limits, CudaStream stream);

}  // namespace allot::kernels::cuda
