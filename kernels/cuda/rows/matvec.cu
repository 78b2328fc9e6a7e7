// Weights of 16 bits are the tensor cores' operands as they are: tensor_matvec.cuh.
//
// Loads in flight are what counts: 64 or 128 bytes a lane, about 100 KB on each multiprocessor, more than
// twice what bandwidth times latency asks for, since a lane's loads pause while its block starts and ends.
// Blocks are short and many, which balances multiprocessors that differ in how fast they read and lets the
// blocks of the next kernel in, one by one, where this one's run out.
#include "kernels/matvec_cuda.h"

#include "kernels/cuda/rows/tensor_matvec.cuh"
#include "kernels/cuda/rows/validate_rows.h"

namespace allot::kernels {
namespace cuda {
namespace {

// Measured on an H100 for products of Llama 3.1 8B and Qwen2 7B, one after another. Of shapes with as many
// chunks in a run, a row's sums have the same order.
using FewRows = TensorShape<1, 1, 4, 4>;
using FewRowsInOneWave = TensorShape<1, 2, 4, 3>;
using FewRowsOfManyFeatures = TensorShape<1, 1, 8, 2>;
using MoreRows = TensorShape<2, 2, 4, 2>;
constexpr int32_t kManyFeatures = 1 << 16;  // those of logits

template <class T>
struct SixteenBitWeights {
  using Params = MatvecParams;
  using Element = T;
  static constexpr int kVector = 8;

  static __device__ __forceinline__ WeightPairs pairs(const uint4& vector, int i) {
    return {word_of(vector, 2 * i), word_of(vector, 2 * i + 1)};
  }
  static __device__ __forceinline__ float scaled(float sum, const Params&, int32_t) { return sum; }
};

// True where blocks of the shape are on the multiprocessors all at once.
template <class Shape>
bool fits_in_one_wave(int32_t out_features, const DeviceLimits& limits) {
  return (out_features + Shape::kFeatures - 1) / Shape::kFeatures <= Shape::kBlocks * limits.multiprocessors;
}

template <class T>
void launch_matvec(const MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  using Weights = SixteenBitWeights<T>;
  if (p.rows > 8) {
    launch_tensor_matvec<Weights, MoreRows>(p, limits, stream);
  } else if (p.out_features >= kManyFeatures) {
    launch_tensor_matvec<Weights, FewRowsOfManyFeatures>(p, limits, stream);
  } else if (!fits_in_one_wave<FewRows>(p.out_features, limits) &&
             fits_in_one_wave<FewRowsInOneWave>(p.out_features, limits)) {
    launch_tensor_matvec<Weights, FewRowsInOneWave>(p, limits, stream);
  } else {
    launch_tensor_matvec<Weights, FewRows>(p, limits, stream);
  }
}

}  // namespace
}  // namespace cuda

bool matvec_supports(int64_t rows, int32_t in_features, DType dtype) {
  constexpr int kVector = cuda::SixteenBitWeights<__half>::kVector;
  return rows >= 0 && rows <= kMaxMatvecRows && in_features >= kVector && in_features % kVector == 0 &&
         (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

void matvec_cuda(const MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  if (p.dtype == DType::kBFloat16) {
    cuda::launch_matvec<__nv_bfloat16>(p, limits, stream);
  } else {
    cuda::launch_matvec<__half>(p, limits, stream);
  }
}

}  // namespace allot::kernels
