// Avx512Vec with the matrix tiles of AMX for bfloat16 operands: sixteen by sixteen dot products of 32
// elements in one instruction. Include it only where the compiler may use these instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vec_avx512.h"

namespace allot::kernels::cpu {

struct AmxVec : Avx512Vec {
  static constexpr bool kTiles = true;

  // Sets the thread's tile configuration: eight tiles of 16 rows of 64 bytes. Other users on the thread (a
  // matrix library) load their own configuration before each use, so the old one is not restored.
  class TileScope {
   public:
    TileScope() {
      alignas(64) static constexpr TileConfig kConfig = [] {
        TileConfig config{};
        config.palette = 1;
        for (int tile = 0; tile < 8; ++tile) {
          config.row_bytes[tile] = 64;
          config.rows[tile] = 16;
        }
        return config;
      }();
      _tile_loadconfig(&kConfig);
    }
    ~TileScope() { _tile_release(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;

   private:
    struct TileConfig {  // the layout that ldtilecfg reads
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    };
    static_assert(sizeof(TileConfig) == 64);
  };

  // Sixteen pairs (low[i], high[i]).
  ALLOT_INLINE F interleave(const uint16_t* low, const uint16_t* high) {
    const auto widen16 = [](const uint16_t* p) {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    };
    return _mm512_castsi512_ps(_mm512_or_si512(widen16(low), _mm512_slli_epi32(widen16(high), 16)));
  }
  // Column of a 16 x 16 matrix of floats.
  ALLOT_INLINE F load_column(const float* column) {
    const __m512i rows =
        _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
    return _mm512_i32gather_ps(rows, column, 4);
  }

  // c[i][j] = sum over k < 32 * chunks of a[i][k] * b[k][j] for 16 x 16 results, accumulated in float32.
  // `a`: 16 rows of bfloat16, `a_stride` bytes apart. `b`: per chunk of 32 k, 16 rows of 16 pairs (b[2r][j],
  // b[2r + 1][j]). `c`: 16 rows of 16 floats. A TileScope must be alive.
  ALLOT_INLINE void tile_product(const uint16_t* a, int64_t a_stride, const uint32_t* b, int32_t chunks,
                                 float* c) {
    _tile_zero(0);
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      _tile_loadd(1, a + chunk * 32, a_stride);
      _tile_loadd(2, b + chunk * 256, 64);
      _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, c, 64);
  }
};

}  // namespace allot::kernels::cpu
