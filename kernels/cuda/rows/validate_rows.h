// Host checks of the row operations, of products of few rows and of sums over GPUs: what rows.cc checks
// except the content of arrays.
#pragma once

#include "kernels/fp8_cuda.h"
#include "kernels/matvec_cuda.h"
#include "kernels/peer_sum_cuda.h"
#include "kernels/rows.h"
#include "kernels/rows_cuda.h"
#include "kernels/split_keys.h"

namespace allot::kernels::cuda {

// Throw InvalidArgument naming operation, field, value and what was expected.
void check(const RmsNormParams& params);
void check(const RotaryParams& params);
void check(const ValueNormsParams& params);
void check(const ActivateAndMultiplyParams& params);
void check(const EmbeddingParams& params);
void check(const GatherRowsParams& params);
void check(const GatherCacheParams& params);
void check(const DivergenceParams& params);
void check(const MatvecParams& params);
void check(const QuantizeRowsParams& params);
void check(const RmsNormParams& params, const QuantizedRows& out);
void check(const ActivateAndMultiplyParams& params, const QuantizedRows& out);
void check(const Fp8MatvecParams& params);
void check(const ScaleProductParams& params);
void check(const RestoreSplitKeysParams& params);
void check(const StoreSplitKeysParams& params);
void check(const SplitQueriesParams& params);
void check(const PeerSumParams& params);
void check(const PeerSumParams& sum, const RmsNormParams& norm, const DeviceLimits& limits);

}  // namespace allot::kernels::cuda
