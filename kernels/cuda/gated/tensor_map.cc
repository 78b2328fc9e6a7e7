#include "kernels/cuda/gated/tensor_map.h"

#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <cstddef>

#include "base/error.h"

namespace allot::kernels::cuda {
namespace {

// The driver's function, found once: nothing here links the driver.
decltype(&cuTensorMapEncodeTiled) find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    throw CudaError(
        fmt::format("the driver has no cuTensorMapEncodeTiled ({}); install one for CUDA 12.0 or newer",
                    cudaGetErrorName(status)));
  }
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

}  // namespace

CUtensorMap tensor_map(const TileSource& source) {
  static const auto encode = find_encode();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(source.columns), static_cast<cuuint64_t>(source.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(source.columns * int64_t{size_of(source.dtype)})};
  const cuuint32_t tile[] = {static_cast<cuuint32_t>(source.tile_columns),
                             static_cast<cuuint32_t>(source.tile_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result = encode(
      &map,
      source.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      2, const_cast<void*>(source.data), sizes, strides, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw CudaError(fmt::format("cuTensorMapEncodeTiled: error {} for a matrix [{}, {}] at {}",
                                static_cast<int>(result), source.rows, source.columns, source.data));
  }
  return map;
}

}  // namespace allot::kernels::cuda
