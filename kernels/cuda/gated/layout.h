// Tiles of the gated product, and what a block needs for them.
#pragma once

#include <cstdint>

#include "kernels/gated_product_cuda.h"

namespace allot::kernels::cuda {

// Elements of a row of a tile in shared memory: 128 bytes.
inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = 128;

inline constexpr int kTileRows = 128;
inline constexpr int kTileFeatures = 128;
inline constexpr int kGroupRows = 64;  // of a warpgroup that multiplies
inline constexpr int kGroups = kTileRows / kGroupRows;
inline constexpr uint32_t kThreads = 128 * (1 + kGroups);
inline constexpr int32_t kCluster = 2;                        // blocks
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;  // of 64 columns of input, gate or up
inline constexpr int kStageBytes = 3 * kTileBytes;
inline constexpr int kStages = 4;
// 64 features of a warpgroup's rows of the result.
inline constexpr int kPanelBytes = kGroupRows * kTileRowBytes;
inline constexpr int kPanels = kTileFeatures / kTileColumns;
inline constexpr int kOutBytes = kGroups * kPanels * kPanelBytes;
inline constexpr int kAlignment = 1024;  // of tiles that are swizzled
inline constexpr int32_t kSharedBytes = kAlignment + kStages * kStageBytes + kOutBytes + 2 * kStages * 8;

// What a cluster multiplies at once is a pair of tiles, of different rows and the same features.
struct Extent {
  int32_t row_pairs = 0;
  int32_t feature_tiles = 0;  // of width
  int32_t column_tiles = 0;   // of in_features
  int32_t width = 0;
  Activation activation = Activation::kSilu;
};
Extent extent_of(const GatedProductParams& params);

// Throws as gated_product_cuda does.
void check(const GatedProductParams& params, const DeviceLimits& limits);

}  // namespace allot::kernels::cuda
