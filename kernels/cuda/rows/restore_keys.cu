// Keys from planes of 8 bits back to 16-bit pages: kHeadDim / 16 neighbouring lanes do a key of a KV head.
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/restore_keys.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {

void restore_split_keys_cuda(const RestoreSplitKeysParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.sequences == 0) return;
  const auto launch = [&]<class T>() {
    cuda::launch_overlapped(p.head_dim == 64 ? cuda::restore_keys<T, 64> : cuda::restore_keys<T, 128>,
                            {.rows = static_cast<uint32_t>(p.max_pages),
                             .parts = static_cast<uint32_t>(p.sequences),
                             .threads = cuda::kRestoreThreads},
                            limits, stream, p);
  };
  if (p.dtype == DType::kBFloat16) {
    launch.template operator()<__nv_bfloat16>();
  } else {
    launch.template operator()<__half>();
  }
}

}  // namespace allot::kernels
