// GenericVec of eight lanes with what AVX2 does better than compiler vector extensions: work across lanes,
// and loads and stores, which GCC takes through the stack or in parts of registers. Include it only where the
// compiler may use these instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vec_generic.h"

namespace allot::kernels::cpu {

struct Avx2Vec : GenericVec<8> {
  ALLOT_INLINE __m256 half(const F& x, int i) { return __builtin_bit_cast(__m256, x.part[i]); }
  ALLOT_INLINE F join(__m256 low, __m256 high) {
    F x;
    x.part[0] = __builtin_bit_cast(FPart, low);
    x.part[1] = __builtin_bit_cast(FPart, high);
    return x;
  }

  ALLOT_INLINE F load(const float* p) { return join(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
  ALLOT_INLINE F load(const uint16_t* p) { return join(widen_eight(p), widen_eight(p + 8)); }
  ALLOT_INLINE void store(float* p, const F& x) {
    _mm256_storeu_ps(p, half(x, 0));
    _mm256_storeu_ps(p + 8, half(x, 1));
  }
  ALLOT_INLINE void store(uint16_t* p, const F& x) {
    // Halves of 128 bits hold elements of both registers after packing.
    const __m256i packed = _mm256_packus_epi32(narrow_eight(half(x, 0)), narrow_eight(half(x, 1)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  ALLOT_INLINE F set1(float x) { return join(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
  ALLOT_INLINE I set1(int32_t x) { return GenericVec::set1(x); }
  ALLOT_INLINE F max(const F& a, const F& b) {
    return join(_mm256_max_ps(half(a, 0), half(b, 0)), _mm256_max_ps(half(a, 1), half(b, 1)));
  }
  ALLOT_INLINE F min(const F& a, const F& b) {
    return join(_mm256_min_ps(half(a, 0), half(b, 0)), _mm256_min_ps(half(a, 1), half(b, 1)));
  }
  ALLOT_INLINE F floor(const F& x) { return join(_mm256_floor_ps(half(x, 0)), _mm256_floor_ps(half(x, 1))); }
  ALLOT_INLINE uint32_t less_bits(const F& a, const F& b) {
    const auto bits = [&](int i) {
      return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(half(a, i), half(b, i), _CMP_LT_OQ)));
    };
    return bits(0) | bits(1) << 8;
  }

  ALLOT_INLINE float reduce_max(const F& x) {
    const __m256 eight = _mm256_max_ps(half(x, 0), half(x, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  ALLOT_INLINE float reduce_add(const F& x) {
    const __m256 eight = half(x, 0) + half(x, 1);
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(two + _mm_movehdup_ps(two));
  }
  // Lane i is the sum of the lanes of x[i].
  ALLOT_INLINE F reduce_add_each(const F (&x)[kLanes]) {
    return join(reduce_add_eight(x), reduce_add_eight(x + 8));
  }
  // Lane i is the sum of lanes 0 .. i.
  ALLOT_INLINE F prefix_sum(const F& x) {
    const __m256 low = prefix_sum_eight(half(x, 0));
    const __m256 last = _mm256_permutevar8x32_ps(low, _mm256_set1_epi32(7));
    return join(low, last + prefix_sum_eight(half(x, 1)));
  }
  // Lane j of x[i] becomes lane i of x[j].
  ALLOT_INLINE void transpose(F (&x)[kLanes]) {
    __m256 block[4][8];
    for (int b = 0; b < 4; ++b) {  // rows 8 (b / 2) + i of columns 8 (b % 2) + j
      for (int i = 0; i < 8; ++i) block[b][i] = half(x[b / 2 * 8 + i], b % 2);
      transpose_eight(block[b]);
    }
    for (int i = 0; i < 8; ++i) {
      x[i] = join(block[0][i], block[2][i]);
      x[8 + i] = join(block[1][i], block[3][i]);
    }
  }

 private:
  ALLOT_INLINE __m256 widen_eight(const uint16_t* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  }
  // Eight bfloat16 in the lower halves of the lanes.
  ALLOT_INLINE __m256i narrow_eight(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, _mm256_castps_si256(nan));
  }
  ALLOT_INLINE __m256 reduce_add_eight(const F* x) {
    __m256 sums[4];
    for (int i = 0; i < 4; ++i) {  // per 128 bits: pairs of x[2 i], x[2 i], x[2 i + 1], x[2 i + 1]
      const __m256 a = half(x[2 * i], 0) + half(x[2 * i], 1);
      const __m256 b = half(x[2 * i + 1], 0) + half(x[2 * i + 1], 1);
      sums[i] = _mm256_hadd_ps(a, b);
    }
    const __m256 low = _mm256_hadd_ps(sums[0], sums[1]);  // per 128 bits: x[0] .. x[3]
    const __m256 high = _mm256_hadd_ps(sums[2], sums[3]);
    return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
  }
  ALLOT_INLINE __m256 prefix_sum_eight(__m256 x) {
    const auto shifted = [](__m256 y, auto bytes) {  // within 128 bits
      return _mm256_castsi256_ps(_mm256_slli_si256(_mm256_castps_si256(y), decltype(bytes)::value));
    };
    x = x + shifted(x, Bytes<4>{});
    x = x + shifted(x, Bytes<8>{});
    const __m256 low = _mm256_permute2f128_ps(x, x, 0x08);  // zeros, the lower four lanes
    return x + _mm256_shuffle_ps(low, low, 0xFF);
  }
  template <int kBytes>
  struct Bytes {
    static constexpr int value = kBytes;
  };
  ALLOT_INLINE void transpose_eight(__m256 (&x)[8]) {
    __m256 pairs[8];
    for (int i = 0; i < 8; i += 2) {  // 2 x 2 blocks
      pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    __m256 quads[8];
    for (int i = 0; i < 8; i += 4) {  // 4 x 4 blocks: quads[i + k] has columns k and 4 + k of rows i .. i + 3
      quads[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
      quads[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
      quads[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
      quads[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int k = 0; k < 4; ++k) {
      x[k] = _mm256_permute2f128_ps(quads[k], quads[4 + k], 0x20);
      x[4 + k] = _mm256_permute2f128_ps(quads[k], quads[4 + k], 0x31);
    }
  }
};

}  // namespace allot::kernels::cpu
