// Launches of the token sampler, and the small kernels around it.
#include <cuda_runtime.h>

#include "kernels/cuda/rows/choose_tokens.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/token_kernels.h"

namespace allot::kernels::cuda {
namespace {

constexpr uint32_t kListThreads = 256;
uint32_t list_blocks(int64_t entries) {
  return static_cast<uint32_t>((entries + kListThreads - 1) / kListThreads);
}

__global__ void feed_tokens(FeedTokensParams p) {
  begin_overlapped();
  const int64_t token = int64_t{blockIdx.x} * kListThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const int32_t choice = p.choices[token];
  if (choice < 0) return;
  p.ids[token] = choice < p.chosen_rows ? p.chosen[choice] : INT32_MAX;
}

__global__ void mark_seen(MarkSeenParams p) {
  begin_overlapped();
  const int64_t token = int64_t{blockIdx.x} * kListThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const int32_t id = p.ids[token], row = p.rows[token];
  if (row < 0 || row >= p.seen_rows || id < 0 || id >= p.vocab_size) return;
  atomicOr(&p.seen[row * seen_words(p.vocab_size) + id / 32], 1u << (id % 32));
}

}  // namespace

void launch_choose_tokens(const ChooseTokensParams& p, uint32_t row_blocks, const DeviceLimits& limits,
                          CudaStream stream) {
  const auto kernel = p.dtype == DType::kFloat32 ? choose_tokens<float>
                      : row_blocks == 1          ? choose_tokens_by_counts<__nv_bfloat16>
                                                 : choose_tokens<__nv_bfloat16>;
  launch_overlapped(
      kernel,
      {.rows = static_cast<uint32_t>(p.rows) * row_blocks, .threads = kThreads, .cluster = row_blocks},
      limits, stream, p);
}

void launch_feed_tokens(const FeedTokensParams& p, const DeviceLimits& limits, CudaStream stream) {
  launch_overlapped(feed_tokens, {.rows = list_blocks(p.tokens), .threads = kListThreads}, limits, stream, p);
}

void launch_mark_seen(const MarkSeenParams& p, const DeviceLimits& limits, CudaStream stream) {
  launch_overlapped(mark_seen, {.rows = list_blocks(p.tokens), .threads = kListThreads}, limits, stream, p);
}

}  // namespace allot::kernels::cuda
