// kernels/product.h in bfloat16 for columns [begin, end), begin a multiple of kTilePanelColumns, by matrix
// tiles. Arguments are checked by the caller.
//
// A matrix lies in panels of two tiles side by side, a tile in pairs of elements of its columns:
// [width / kTileWidth][2][kTileWidth / 2][kLanes][2], with zeros beyond the last column and beyond the width.
// Rows are copied into tiles of kLanes of them, [width / kTileWidth][kLanes][kTileWidth], with zeros
// likewise. So all rows and columns go the same way through the processor's multipliers, whatever lies beside
// them.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "base/round_up.h"
#include "kernels/cpu/launch.h"
#include "kernels/cpu/vec_amx.h"
#include "kernels/product.h"

namespace allot::kernels::cpu {

inline constexpr int64_t kTileElements = kLanes * kTileWidth;
inline constexpr int64_t kTileSums = int64_t{kLanes} * kLanes;
// Bytes by which the first rows ask for panels ahead of their use. Where one ends the next one begins.
inline constexpr uintptr_t kTileBytesAhead = 4096;

inline void copy_rows_to_tiles(const ProductParams& p, int64_t first, int64_t rows, uint16_t* tiles) {
  const auto* const input = static_cast<const uint16_t*>(p.input) + first * p.width;
  for (int64_t top = 0; top < rows; top += kLanes) {
    for (int64_t left = 0; left < p.width; left += kTileWidth) {
      const int64_t elements = std::min(kTileWidth, p.width - left);
      const auto inside = static_cast<__mmask32>(~0u >> (kTileWidth - elements));
      for (int64_t row = top; row < top + kLanes; ++row, tiles += kTileWidth) {
        const __mmask32 used = row < rows ? inside : 0;
        _mm512_store_si512(tiles, _mm512_maskz_loadu_epi16(used, input + row * p.width + left));
      }
    }
  }
}

// The products of kRowTiles tiles of rows and a panel along the whole width, [kRowTiles][2][kLanes][kLanes].
// `from_memory`: the panel is in no cache.
template <int kRowTiles>
ALLOT_INLINE void multiply_tiles(const uint16_t* rows, const uint16_t* panel, int64_t tiles, bool from_memory,
                                 float* sums) {
  const int64_t next_rows = tiles * kTileElements;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kRowTiles == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t tile = 0; tile < tiles; ++tile, rows += kTileElements, panel += 2 * kTileElements) {
    if (from_memory) {  // behind the last panel it is no address of an array, which is no fault here
      const auto ahead = reinterpret_cast<uintptr_t>(panel) + kTileBytesAhead;
      for (uintptr_t line = 0; line < 2 * kTileElements * sizeof(*panel); line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
    }
    _tile_loadd(4, rows, 64);
    _tile_loadd(6, panel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kTileElements, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(5, rows + next_rows, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kTileSums, 64);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, sums + 2 * kTileSums, 64);
    _tile_stored(3, sums + 3 * kTileSums, 64);
  }
}

// Results of `rows` rows from `first` on, which lie in `tiles`, and of the panel of `column`.
template <int kRowTiles>
ALLOT_INLINE void multiply_panel(const ProductParams& p, const uint16_t* tiles, int64_t first, int64_t rows,
                                 int64_t column, bool from_memory) {
  const int64_t width = round_up(p.width, kTileWidth);
  alignas(64) float sums[kRowTiles * 2 * kTileSums];
  multiply_tiles<kRowTiles>(tiles, static_cast<const uint16_t*>(p.matrix) + column * width,
                            width / kTileWidth, from_memory, sums);
  const int64_t columns = std::min(kTilePanelColumns, p.columns - column);
  const auto inside = static_cast<__mmask32>(~0u >> (kTilePanelColumns - columns));
  __m512 bias[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  if (p.bias != nullptr) {
    const __m512i both = _mm512_maskz_loadu_epi16(inside, static_cast<const uint16_t*>(p.bias) + column);
    bias[0] = AmxVec::widen(_mm512_castsi512_si256(both));
    bias[1] = AmxVec::widen(_mm512_extracti64x4_epi64(both, 1));
  }
  auto* out = static_cast<uint16_t*>(p.out) + first * p.columns + column;
  for (int64_t row = 0; row < rows; ++row, out += p.columns) {
    const float* const of_row = sums + row / kLanes * 2 * kTileSums + row % kLanes * kLanes;
    const __m512 left = _mm512_load_ps(of_row) + bias[0],
                 right = _mm512_load_ps(of_row + kTileSums) + bias[1];
    _mm512_mask_storeu_epi16(out, inside, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(right, left)));
  }
}

inline void multiply_in_tiles(const ProductParams& p, int64_t begin, int64_t end,
                              const ProductScratch& scratch) {
  const AmxVec::TileScope scope;
  for (int64_t first = 0; first < p.rows; first += kTileProductRows) {
    const int64_t rows = std::min(kTileProductRows, p.rows - first);
    copy_rows_to_tiles(p, first, rows, scratch.tiles);
    for (int64_t column = begin; column < end; column += kTilePanelColumns) {
      for (int64_t row = 0; row < rows; row += 2 * kLanes) {
        const uint16_t* const tiles = scratch.tiles + row * round_up(p.width, kTileWidth);
        const int64_t count = std::min<int64_t>(2 * kLanes, rows - row);
        if (count > kLanes) {
          multiply_panel<2>(p, tiles, first + row, count, column, row == 0);
        } else {
          multiply_panel<1>(p, tiles, first + row, count, column, row == 0);
        }
      }
    }
  }
}

}  // namespace allot::kernels::cpu
