#include <spdlog/fmt/fmt.h>

#include "base/error.h"
#include "kernels/cuda/gated/layout.h"
#include "kernels/cuda/rows/place.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int32_t kVectorElements = 8;  // of 16 bytes, of which rows of a tensor map are multiples

bool runs_on(const DeviceLimits& limits) {
#ifdef ALLOT_HAS_CODE_OF_90A
  return limits.compute_capability == 90 && limits.shared_bytes_per_block >= kSharedBytes;
#else
  (void)limits;
  return false;
#endif
}

bool is_supported(int32_t width, int32_t in_features, DType dtype) {
  const auto is_of_vectors = [](int32_t size) {
    return size >= kVectorElements && size % kVectorElements == 0;
  };
  return is_of_vectors(width) && is_of_vectors(in_features) &&
         (dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

// Tiles of so many elements.
int64_t tiles_of(int64_t elements, int64_t tile) {
  return (elements + tile - 1) / tile;
}

}  // namespace

Extent extent_of(const GatedProductParams& p) {
  return {.row_pairs = static_cast<int32_t>(tiles_of(p.rows, kCluster * kTileRows)),
          .feature_tiles = static_cast<int32_t>(tiles_of(p.width, kTileFeatures)),
          .column_tiles = static_cast<int32_t>(tiles_of(p.in_features, kTileColumns)),
          .width = p.width,
          .activation = p.activation};
}

void check(const GatedProductParams& p, const DeviceLimits& limits) {
  const RowCheck check("gated_product", kPlace);
  check.rows("rows", p.rows);
  check.size("width", p.width, kVectorElements, kPlace.most_width);
  if (!is_supported(p.width, p.in_features, p.dtype)) {
    check.refuse(
        "width is {}, in_features {}, dtype {}; expected multiples of {}, at least {}, of bfloat16 or float16",
        p.width, p.in_features, name(p.dtype), kVectorElements, kVectorElements);
  }
  if (!runs_on(limits)) {
    throw Unsupported(fmt::format(
        "gated_product on CUDA: compute capability {}.{}, {} bytes of shared memory for a block; there is a "
        "kernel for 9.0 alone, which needs {} bytes: multiply, then call activate_and_multiply_cuda",
        limits.compute_capability / 10, limits.compute_capability % 10, limits.shared_bytes_per_block,
        kSharedBytes));
  }
  // Stages are counted in 32 bits, and rows up to the end of the last pair of tiles.
  if (const Extent extent = extent_of(p);
      int64_t{extent.row_pairs} * extent.feature_tiles * extent.column_tiles > INT32_MAX ||
      int64_t{extent.row_pairs} * kCluster * kTileRows > INT32_MAX) {
    check.refuse("rows is {} with width {} and in_features {}; expected fewer, or several calls", p.rows,
                 p.width, p.in_features);
  }
  if (p.rows == 0) return;
  check.pointers({{"input", p.input}, {"weight", p.weight}, {"out", p.out}});
  check_alignment(check, {{"input", p.input}, {"weight", p.weight}, {"out", p.out}});
}

}  // namespace cuda

bool gated_product_supports(int32_t width, int32_t in_features, DType dtype, const DeviceLimits& limits) {
  return cuda::runs_on(limits) && cuda::is_supported(width, in_features, dtype);
}

}  // namespace allot::kernels
