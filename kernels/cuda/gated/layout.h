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
inline constexpr uint32_t kCluster = 2;
inline constexpr int kTileBytes = kTileRows * kTileRowBytes;  // of 64 columns of input, gate or up
inline constexpr int kStageBytes = 3 * kTileBytes;
inline constexpr int kStages = 4;
inline constexpr int kPanelBytes =
    kGroupRows * kTileRowBytes;  // 64 features of a warpgroup's rows of the result
inline constexpr int kPanels = kTileFeatures / kTileColumns;
inline constexpr int kOutBytes = kGroups * kPanels * kPanelBytes;
inline constexpr int kAlignment = 1024;  // of tiles that are swizzled
inline constexpr int32_t kSharedBytes = kAlignment + kStages * kStageBytes + kOutBytes + 2 * kStages * 8;

// Throws as gated_product_cuda does.
void check(const GatedProductParams& params, const DeviceLimits& limits);

}  // namespace allot::kernels::cuda
