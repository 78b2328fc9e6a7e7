#include "model/kept_states.h"

#include <algorithm>
#include <cassert>

#include "base/round_up.h"
#include "model/parallel.h"

namespace allot::model {
namespace {

// Most rows of a block. The weights are read once for each; its logits take as many times the vocabulary.
constexpr int64_t kMaxHeadRows = 128;

}  // namespace

KeptStates::KeptStates(const Linear& output_head, kernels::DType dtype, int threads)
    : output_head_(output_head), dtype_(dtype), threads_(threads), logits_(static_cast<size_t>(threads)) {}

void KeptStates::reserve(int64_t rows) {
  // The last block is read up to a whole group.
  const int64_t bytes = (rows + kRowGroup) * output_head_.in_features() * kernels::size_of(dtype_);
  if (states_.size() < bytes) states_ = Buffer(bytes);
}

std::byte* KeptStates::row(int64_t index) {
  return states_.data() + index * output_head_.in_features() * kernels::size_of(dtype_);
}

void KeptStates::compare(int64_t dense, std::span<const int64_t> sampled, int64_t rows,
                         std::span<kernels::RowDivergence> out) {
  assert(out.size() == sampled.size() * static_cast<size_t>(rows));
  const int64_t vocab_size = output_head_.out_features();
  const int64_t weight_bytes = vocab_size * output_head_.in_features() * kernels::size_of(dtype_);
  const bool in_parallel = weight_bytes <= kMaxPrivateMatrixBytes;
  const int64_t even = round_up((rows + threads_ - 1) / threads_, kRowGroup);
  const int64_t block_rows = in_parallel ? std::min(even, kMaxHeadRows) : kMaxHeadRows;
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int block_threads = in_parallel ? 1 : threads_;

  const auto project = [&](int64_t first, int64_t count, Buffer& logits) {
    if (logits.size() == 0)
      logits = Buffer(kMaxHeadRows * vocab_size * static_cast<int64_t>(kernels::size_of(dtype_)));
    output_head_.apply(row(first), count, logits.data(), block_threads);
  };
  run_parallel(blocks, in_parallel ? threads_ : 1, [&](int64_t block, int worker) {
    Logits& logits = logits_[worker];
    const int64_t begin = block * block_rows;
    const int64_t count = std::min(block_rows, rows - begin);
    project(dense + begin, count, logits.dense);
    for (size_t i = 0; i < sampled.size(); ++i) {
      project(sampled[i] + begin, count, logits.sampled);
      kernels::row_divergence({.rows = count,
                               .vocab_size = static_cast<int32_t>(vocab_size),
                               .dtype = dtype_,
                               .stride = vocab_size,
                               .dense = logits.dense.data(),
                               .sampled = logits.sampled.data(),
                               .out = out.data() + static_cast<int64_t>(i) * rows + begin},
                              block_threads);
    }
  });
}

}  // namespace allot::model
