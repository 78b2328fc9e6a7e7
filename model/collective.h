// What the ranks of a model (model_split.h) do together. Every rank has its own, used by one thread, and all
// call the same functions in the same order with the same sizes; a call that a rank leaves out leaves the
// others waiting until abort().
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"
#include "kernels/rows.h"
#include "model/model_split.h"

namespace allot::model {

class Collective {
 public:
  virtual ~Collective() = default;

  // Replaces `count` elements of `dtype` on every rank by their sums over the ranks, rounded to the dtype
  // once or after each addition; all ranks get the same bits. Where data are on a CUDA device, queued on
  // `stream`, which may be captured; on the CPU `stream` is null and the call waits for the other ranks.
  virtual void sum(void* data, int64_t count, kernels::DType dtype, kernels::CudaStream stream) = 0;

  // sum() of `norm.input` and the RMS norm of the sums, with a residual, in one kernel that is queued
  // likewise; the sums themselves are not kept. False, with nothing done, where there is no such kernel for
  // these rows.
  virtual bool sum_and_normalise(const kernels::RmsNormParams& /*norm*/, kernels::CudaStream /*stream*/) {
    return false;
  }

  // Writes the `bytes` of each rank's `part` to every rank's `all`, one rank's behind the other's, in the
  // order of the ranks. `part` and `all` do not overlap. Queued likewise.
  virtual void gather(const void* part, void* all, int64_t bytes, kernels::CudaStream stream) = 0;
};

// Which rank of a model a decoder is. `collective` is null where the model is whole, else it outlives the
// decoder.
struct ModelRank {
  ModelSplit split = {};
  Collective* collective = nullptr;
};

}  // namespace allot::model
