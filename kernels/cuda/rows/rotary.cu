#include <algorithm>
#include <bit>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/rotary.cuh"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {

void rotate_and_store_cuda(const RotaryParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.tokens == 0) return;
  const int32_t half = p.head_dim / 2;
  const auto launch = [&]<class T, int N, int kSplitDim>() {
    const auto lanes = std::min(32u, std::bit_ceil(static_cast<uint32_t>((half + N - 1) / N)));
    const uint32_t heads_of_block = cuda::kRotaryThreads / lanes;
    const auto heads = static_cast<uint32_t>(p.num_q_heads + 2 * p.num_kv_heads);
    cuda::launch_overlapped(cuda::rotate_and_store<T, N, kSplitDim>,
                            {.rows = static_cast<uint32_t>(p.tokens),
                             .parts = (heads + heads_of_block - 1) / heads_of_block,
                             .threads = cuda::kRotaryThreads},
                            limits, stream, p, static_cast<int32_t>(lanes));
  };
  if (p.planes.high != nullptr) {
    const auto of_type = [&]<class T>() {
      if (p.head_dim == 64) {
        launch.template operator()<T, 8, 64>();
      } else {
        launch.template operator()<T, 8, 128>();
      }
    };
    if (p.dtype == DType::kBFloat16) {
      of_type.template operator()<__nv_bfloat16>();
    } else {
      of_type.template operator()<__half>();
    }
    return;
  }
  const bool aligned = half % 4 == 0 && half * size_of(p.dtype) % 16 == 0 &&
                       cuda::aligned_to_vectors(p.qkv_stride * size_of(p.dtype), p.qkv, p.bias, p.q_norm,
                                                p.k_norm, p.cos, p.sin, p.key_pages, p.value_pages);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() { launch.template operator()<T, N, 0>(); });
}

}  // namespace allot::kernels
