// With a weight's conversion from 8 bits the arithmetic of a product of scalars would take longer than its
// bytes from four rows on: tensor_matvec.cuh.
#include <algorithm>

#include "kernels/cuda/rows/tensor_matvec.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

// Measured on an H100 for products of Llama 3.1 8B, one after another and with small kernels between them.
using Fp8FewRows = TensorShape<1, 1, 4, 4>;
// A block would read its weights in two turns otherwise, and there are not many blocks to hide that.
using Fp8FewRowsOfSmallProduct = TensorShape<1, 1, 2, 4>;
using Fp8MoreRows = TensorShape<2, 2, 2, 3>;
constexpr int32_t kSmallProduct = 8192;  // features of a small product, out and in, are fewer

// Four weights of 8 bits as bfloat16, exactly.
__device__ __forceinline__ WeightPairs widen(uint32_t weights) {
  // Exponent and fraction go to the low end of bfloat16's exponent and the high end of its fraction. That is
  // the number times 2^(7 - 127), subnormal ones included.
  const auto pair = [](uint32_t bytes) {  // of weights, in the upper half of each element
    const uint32_t bits = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07F007F0u);
    const __nv_bfloat16 factor = __ushort_as_bfloat16(0x7B80);  // 2^120
    const __nv_bfloat162 wide =
        __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), __halves2bfloat162(factor, factor));
    return *reinterpret_cast<const uint32_t*>(&wide);
  };
  return {pair(__byte_perm(weights, 0, 0x1404)), pair(__byte_perm(weights, 0, 0x3424))};
}

struct Fp8Weights {
  using Params = Fp8MatvecParams;
  using Element = __nv_bfloat16;
  static constexpr int kVector = 16;

  static __device__ __forceinline__ WeightPairs pairs(const uint4& vector, int i) {
    return widen(word_of(vector, i));
  }
  static __device__ __forceinline__ float scaled(float sum, const Params& p, int32_t feature) {
    return sum * p.weight_scales[feature];
  }
};

}  // namespace
}  // namespace cuda

bool fp8_matvec_supports(int64_t rows, int32_t in_features) {
  constexpr int kVector = cuda::Fp8Weights::kVector;
  return rows >= 0 && rows <= kMaxFp8MatvecRows && in_features >= kVector && in_features % kVector == 0;
}

void fp8_matvec_cuda(const Fp8MatvecParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  if (p.rows > 8) {
    cuda::launch_tensor_matvec<cuda::Fp8Weights, cuda::Fp8MoreRows>(p, limits, stream);
  } else if (std::max(p.out_features, p.in_features) < cuda::kSmallProduct) {
    cuda::launch_tensor_matvec<cuda::Fp8Weights, cuda::Fp8FewRowsOfSmallProduct>(p, limits, stream);
  } else {
    cuda::launch_tensor_matvec<cuda::Fp8Weights, cuda::Fp8FewRows>(p, limits, stream);
  }
}

}  // namespace allot::kernels
