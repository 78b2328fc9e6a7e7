// Tensor maps: what copies of tiles of a matrix need to know of it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/estimator.h"

namespace allot::kernels::cuda {

struct TileSource {
  const void* data = nullptr;  // [rows, columns], contiguous, aligned to 16 bytes
  int64_t rows = 0, columns = 0;
  DType dtype = DType::kBFloat16;           // bfloat16 or float16
  int32_t tile_rows = 0, tile_columns = 0;  // at most 256, and 128 bytes
};

// A map whose tiles are swizzled by 128 bytes; elements outside the matrix read as zeros and are not written.
// Throws CudaError when the driver refuses.
CUtensorMap tensor_map(const TileSource& source);

}  // namespace allot::kernels::cuda
