// The inner loops of kernels/product.h for columns [begin, end), as templates over the vector type. Arguments
// are checked by the caller.
//
// A matrix lies in panels of kLanes columns: [width][kLanes] elements, zeros for columns beyond the last. A
// tile is up to kTileRows rows times a panel; its sums stay in registers: 6 x 16 floats take 12 of the 16
// registers of AVX2. Rows are widened once, into [width][rows of the tile], so that a step along the width
// reads its factors side by side. Sums that pause between parts of the width are kept as the floats that they
// are, so their bits do not depend on it.
#pragma once

#include <cstdint>

#include "kernels/cpu/launch.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/product.h"

namespace allot::kernels::cpu {

inline constexpr int kTileRows = 6;
// Up to so many tiles read a panel as it is stored, the whole width at once; more of them share parts of it
// in the first cache.
inline constexpr int64_t kWholeWidthTiles = 3;
// Bytes by which a lone tile asks for a panel ahead of its use. Where one ends the next one begins, so this
// goes on from panel to panel, and over the pages between which the processor's own prefetching pauses.
inline constexpr uintptr_t kPanelBytesAhead = 2048;

template <int kRows>
struct RowCount {
  static constexpr int value = kRows;
};

// A part of a panel as floats: itself, or a widened copy.
template <class V>
ALLOT_INLINE const float* widen_panel(const float* panel, int64_t, float*) {
  return panel;
}
template <class V>
ALLOT_INLINE const float* widen_panel(const uint16_t* panel, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) V::store(out + i * kLanes, V::load(panel + i * kLanes));
  return out;
}

// Adds the products of kRows rows and kPanels panels, `panel_stride` elements apart, over `width` elements.
// The panels are read from memory where kAhead.
template <class V, class T, int kRows, int kPanels, bool kAhead>
ALLOT_INLINE void add_products(const float* rows, const T* panels, int64_t panel_stride, int64_t width,
                               typename V::F (&sums)[kRows][kPanels]) {
  using F = typename V::F;
  for (int64_t i = 0; i < width; ++i) {
    F column[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const T* const elements = panels + p * panel_stride + i * kLanes;
      if constexpr (kAhead)  // behind the last panel it is no address of an array, which is no fault here
        __builtin_prefetch(
            reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(elements) + kPanelBytesAhead));
      column[p] = V::load(elements);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F factor = V::set1(rows[i * kRows + r]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) sums[r][p] = V::fma(factor, column[p], sums[r][p]);
    }
  }
}

template <class V, class T>
ALLOT_INLINE void store_result(const ProductParams& p, int64_t row, int64_t column, typename V::F sum) {
  const T* const bias = static_cast<const T*>(p.bias);
  const int64_t left = p.columns - column;
  const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
  if (bias != nullptr) sum = sum + load_lanes<V>(bias + column, lanes);
  store_lanes<V>(static_cast<T*>(p.out) + row * p.columns + column, sum, lanes);
}

// kRows rows from `first` on, kPanels panels at a time from column `begin` on, as many as there are whole.
// Returns the first column that is left.
template <class V, class T, int kRows, int kPanels, bool kAhead>
ALLOT_INLINE int64_t multiply_panels(const ProductParams& p, const float* rows, int64_t first, int64_t begin,
                                     int64_t end) {
  constexpr int64_t kColumns = int64_t{kPanels} * kLanes;
  const T* const matrix = static_cast<const T*>(p.matrix);
  for (; begin + kColumns - kLanes < end; begin += kColumns) {  // the last panel may have fewer columns
    typename V::F sums[kRows][kPanels];
    for (auto& of_row : sums) {
      for (auto& sum : of_row) sum = V::zero();
    }
    add_products<V, T, kRows, kPanels, kAhead>(rows, matrix + begin * p.width, p.width * kLanes, p.width,
                                               sums);
    for (int r = 0; r < kRows; ++r) {
      for (int panel = 0; panel < kPanels; ++panel)
        store_result<V, T>(p, first + r, begin + panel * kLanes, sums[r][panel]);
    }
  }
  return begin;
}

// Columns [begin, end) of a tile, the whole width at once. Few rows take several panels together: a sum waits
// for the one before it, and eight of them or more keep the processor busy.
template <class V, class T, int kRows, bool kAhead>
void multiply_tile(const ProductParams& p, const float* rows, int64_t first, int64_t begin, int64_t end) {
  constexpr int kPanels = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
  begin = multiply_panels<V, T, kRows, kPanels, kAhead>(p, rows, first, begin, end);
  if constexpr (kPanels > 1) multiply_panels<V, T, kRows, 1, kAhead>(p, rows, first, begin, end);
}

// Adds a part of the width to the sums [kRows][kLanes] of a tile.
template <class V, int kRows>
void add_to_tile(const float* rows, const float* panel, int64_t width, float* kept) {
  typename V::F sums[kRows][1];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) sums[r][0] = V::load(kept + r * kLanes);
  add_products<V, float, kRows, 1, false>(rows, panel, 0, width, sums);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) V::store(kept + r * kLanes, sums[r][0]);
}

// Calls body(RowCount<rows>) for 1 to kTileRows rows.
template <class Body>
ALLOT_INLINE void with_rows(int64_t rows, const Body& body) {
  switch (rows) {
    case 1:
      return body(RowCount<1>{});
    case 2:
      return body(RowCount<2>{});
    case 3:
      return body(RowCount<3>{});
    case 4:
      return body(RowCount<4>{});
    case 5:
      return body(RowCount<5>{});
    default:
      return body(RowCount<kTileRows>{});
  }
}

template <class V, class T>
void widen_tile(const ProductParams& p, int64_t first, int64_t rows, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* const input = static_cast<const T*>(p.input) + (first + r) * p.width;
    for_lanes<V>(p.width, [&](int64_t i, int lanes) {
      float part[kLanes];
      V::store(part, load_lanes<V>(input + i, lanes));
      for (int lane = 0; lane < lanes; ++lane) out[(i + lane) * rows + r] = part[lane];
    });
  }
}

// Columns [begin, end) of `rows` rows from `first` on; begin is a multiple of kLanes.
template <class V, class T>
void multiply_block(const ProductParams& p, int64_t first, int64_t rows, int64_t begin, int64_t end,
                    const ProductScratch& scratch) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  // Tiles of even sizes: one of one or two rows takes as long as one of four.
  const auto for_tiles = [&](const auto& body) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = rows * tile / tiles;
      body(row, rows * (tile + 1) / tiles - row);
    }
  };
  for_tiles([&](int64_t row, int64_t count) {
    widen_tile<V, T>(p, first + row, count, scratch.rows + row * p.width);
  });
  if (tiles == 1) {
    return with_rows(rows, [&](auto of_tile) {
      multiply_tile<V, T, decltype(of_tile)::value, true>(p, scratch.rows, first, begin, end);
    });
  }
  if (tiles <= kWholeWidthTiles) {
    for (int64_t column = begin; column < end; column += kLanes) {
      for_tiles([&](int64_t row, int64_t count) {
        with_rows(count, [&](auto of_tile) {
          multiply_tile<V, T, decltype(of_tile)::value, false>(p, scratch.rows + row * p.width, first + row,
                                                               column,
                                                               column + kLanes < end ? column + kLanes : end);
        });
      });
    }
    return;
  }
  for (int64_t column = begin; column < end; column += kLanes) {
    for (int64_t i = 0; i < rows * kLanes; ++i) scratch.sums[i] = 0;
    const T* const panel = static_cast<const T*>(p.matrix) + column * p.width;
    for (int64_t at = 0; at < p.width; at += kProductWidth) {
      const int64_t width = p.width - at < kProductWidth ? p.width - at : kProductWidth;
      const float* const part = widen_panel<V>(panel + at * kLanes, width, scratch.panel);
      for_tiles([&](int64_t row, int64_t count) {
        with_rows(count, [&](auto of_tile) {
          add_to_tile<V, decltype(of_tile)::value>(scratch.rows + row * p.width + at * count, part, width,
                                                   scratch.sums + row * kLanes);
        });
      });
    }
    for (int64_t row = 0; row < rows; ++row)
      store_result<V, T>(p, first + row, column, V::load(scratch.sums + row * kLanes));
  }
}

template <class V, class T>
void multiply_columns(const ProductParams& p, int64_t begin, int64_t end, const ProductScratch& scratch) {
  for (int64_t first = 0; first < p.rows; first += kProductRows) {
    const int64_t left = p.rows - first;
    multiply_block<V, T>(p, first, left < kProductRows ? left : kProductRows, begin, end, scratch);
  }
}

}  // namespace allot::kernels::cpu
