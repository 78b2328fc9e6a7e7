#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/error.h"
#include "kernels/cuda/rows/place.h"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/row_checks.h"

namespace allot::kernels {
namespace {

using cuda::kPlace;

void check(const ChooseTokensParams& p) {
  constexpr int64_t kMaxRows = INT32_MAX / cuda::kMaxRowBlocks;
  const RowCheck check("choose_tokens", kPlace);
  check.size("rows", p.rows, 0, kMaxRows);
  check.size("vocab_size", p.vocab_size, 1, cuda::kMaxVocabulary);
  if (p.dtype == DType::kFloat16) {
    check.refuse("logits are {}; expected bfloat16 or float32", name(p.dtype));
  }
  const int64_t vector = 16 / size_of(p.dtype);
  if (p.logits_stride < p.vocab_size || p.logits_stride % vector != 0) {
    check.refuse("logits_stride is {} elements; expected a multiple of {}, at least vocab_size = {}",
                 p.logits_stride, vector, p.vocab_size);
  }
  if (p.rows == 0) return;
  check.pointers({{"logits", p.logits},
                  {"rules", p.rules},
                  {"draws", p.draws},
                  {"positions", p.positions},
                  {"seen", p.seen},
                  {"chosen", p.chosen}});
  if (reinterpret_cast<uintptr_t>(p.logits) % 16 != 0) {
    check.refuse("logits is at address {}, which is not a multiple of 16 bytes", p.logits);
  }
  if (p.seen_row == nullptr && p.seen_rows < p.rows) {
    check.refuse("seen has {} rows for {} rows of logits; give it more or name each row's with seen_row",
                 p.seen_rows, p.rows);
  }
}

}  // namespace

namespace cuda {

uint32_t blocks_of_row(int64_t rows, DType dtype, const DeviceLimits& limits) {
  if (limits.compute_capability < 90) return 1;  // no clusters
  // One block that counts is as fast as this many that do not.
  constexpr uint32_t kBlocksThatCount = 2;
  const auto blocks =
      std::clamp(std::bit_floor(static_cast<uint32_t>(limits.multiprocessors / std::max<int64_t>(rows, 1))),
                 1u, kMaxRowBlocks);
  return dtype == DType::kBFloat16 && blocks <= kBlocksThatCount ? 1 : blocks;
}

}  // namespace cuda

void choose_tokens_cuda(const ChooseTokensParams& p, const DeviceLimits& limits, CudaStream stream) {
  check(p);
  if (p.rows == 0) return;
  cuda::launch_choose_tokens(p, cuda::blocks_of_row(p.rows, p.dtype, limits), limits, stream);
}

void feed_tokens_cuda(const FeedTokensParams& p, const DeviceLimits& limits, CudaStream stream) {
  const RowCheck check("feed_tokens", kPlace);
  check.rows("tokens", p.tokens);
  check.size("chosen_rows", p.chosen_rows, 0);
  if (p.tokens == 0) return;
  check.pointers({{"choices", p.choices}, {"chosen", p.chosen}, {"ids", p.ids}});
  cuda::launch_feed_tokens(p, limits, stream);
}

void mark_seen_cuda(const MarkSeenParams& p, const DeviceLimits& limits, CudaStream stream) {
  const RowCheck check("mark_seen", kPlace);
  check.rows("tokens", p.tokens);
  check.size("vocab_size", p.vocab_size, 1, cuda::kMaxVocabulary);
  if (p.tokens == 0) return;
  check.pointers({{"ids", p.ids}, {"rows", p.rows}, {"seen", p.seen}});
  cuda::launch_mark_seen(p, limits, stream);
}

void clear_seen_cuda(const ClearSeenParams& p, CudaStream stream) {
  const RowCheck check("clear_seen", kPlace);
  check.size("vocab_size", p.vocab_size, 1, cuda::kMaxVocabulary);
  check.pointers({{"seen", p.seen}});
  if (p.row < 0 || p.row >= p.seen_rows) {
    check.refuse("row is {}; seen has rows 0 to {}", p.row, p.seen_rows - 1);
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
