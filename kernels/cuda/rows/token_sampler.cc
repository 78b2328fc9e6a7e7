#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.h"
#include "kernels/cuda/rows/refuse.h"
#include "kernels/cuda/rows/token_kernels.h"

namespace allot::kernels {
namespace {

using cuda::check_pointer;
using cuda::refuse;

void check_vocabulary(const char* operation, int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > cuda::kMaxVocabulary) {
    refuse(operation, "vocab_size is {}; expected 1 to {}", vocab_size, cuda::kMaxVocabulary);
  }
}

void check(const ChooseTokensParams& p) {
  constexpr const char* kName = "choose_tokens on CUDA";
  constexpr int64_t kMaxRows = INT32_MAX / cuda::kMaxRowBlocks;
  if (p.rows < 0 || p.rows > kMaxRows) refuse(kName, "rows is {}; expected 0 to {}", p.rows, kMaxRows);
  check_vocabulary(kName, p.vocab_size);
  if (p.dtype == DType::kFloat16) {
    refuse(kName, "logits are {}; expected bfloat16 or float32", name(p.dtype));
  }
  const int64_t vector = 16 / size_of(p.dtype);
  if (p.logits_stride < p.vocab_size || p.logits_stride % vector != 0) {
    refuse(kName, "logits_stride is {} elements; expected a multiple of {}, at least vocab_size = {}",
           p.logits_stride, vector, p.vocab_size);
  }
  if (p.rows == 0) return;
  check_pointer(kName, "logits", p.logits);
  if (reinterpret_cast<uintptr_t>(p.logits) % 16 != 0) {
    refuse(kName, "logits is at address {}, which is not a multiple of 16 bytes", p.logits);
  }
  check_pointer(kName, "rules", p.rules);
  check_pointer(kName, "draws", p.draws);
  check_pointer(kName, "positions", p.positions);
  check_pointer(kName, "seen", p.seen);
  check_pointer(kName, "chosen", p.chosen);
  check_pointer(kName, "fault", p.fault);
  if (p.seen_row == nullptr && p.seen_rows < p.rows) {
    refuse(kName, "seen has {} rows for {} rows of logits; give it more or name each row's with seen_row",
           p.seen_rows, p.rows);
  }
}

}  // namespace

namespace cuda {

uint32_t blocks_of_row(int64_t rows, const DeviceLimits& limits) {
  if (limits.compute_capability < 90) return 1;  // no clusters
  const auto blocks = static_cast<uint32_t>(limits.multiprocessors / std::max<int64_t>(rows, 1));
  return std::clamp(std::bit_floor(blocks), 1u, kMaxRowBlocks);
}

}  // namespace cuda

void choose_tokens_cuda(const ChooseTokensParams& p, const DeviceLimits& limits, CudaStream stream) {
  check(p);
  if (p.rows == 0) return;
  cuda::launch_choose_tokens(p, cuda::blocks_of_row(p.rows, limits), limits, stream);
}

void mark_seen_cuda(const MarkSeenParams& p, const DeviceLimits& limits, CudaStream stream) {
  constexpr const char* kName = "mark_seen on CUDA";
  if (p.tokens < 0 || p.tokens > INT32_MAX) {
    refuse(kName, "tokens is {}; expected 0 to {}", p.tokens, INT32_MAX);
  }
  check_vocabulary(kName, p.vocab_size);
  if (p.tokens == 0) return;
  check_pointer(kName, "ids", p.ids);
  check_pointer(kName, "rows", p.rows);
  check_pointer(kName, "seen", p.seen);
  cuda::launch_mark_seen(p, limits, stream);
}

void clear_seen_cuda(const ClearSeenParams& p, CudaStream stream) {
  constexpr const char* kName = "clear_seen on CUDA";
  check_vocabulary(kName, p.vocab_size);
  check_pointer(kName, "seen", p.seen);
  if (p.row < 0 || p.row >= p.seen_rows) {
    refuse(kName, "row is {}; seen has rows 0 to {}", p.row, p.seen_rows - 1);
  }
  const int64_t words = seen_words(p.vocab_size);
  const cudaError_t status =
      cudaMemsetAsync(p.seen + p.row * words, 0, static_cast<size_t>(words) * sizeof(uint32_t), stream);
  if (status != cudaSuccess) {
    throw CudaError(
        fmt::format("cudaMemsetAsync: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status)));
  }
}

}  // namespace allot::kernels
