// Sixteen float lanes in one AVX-512 register (F, BW, DQ, VL). Same interface as GenericVec. Include it only
// where the compiler may use these instructions.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/vec_generic.h"

namespace allot::kernels::cpu {

struct Avx512Vec {
  using F = __m512;
  using I = __m512i;

  static constexpr bool kTiles = false;
  static constexpr int kKeyTile = 16;
  static constexpr int kRowTile = 8;
  static constexpr int kGatherSums = 16;
  static constexpr int kKeysASample = 8;

  ALLOT_INLINE __mmask16 first(int count) { return static_cast<__mmask16>((1u << count) - 1u); }

  ALLOT_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  ALLOT_INLINE F widen(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  ALLOT_INLINE F load(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  ALLOT_INLINE F load_partial(const float* p, int count) { return _mm512_maskz_loadu_ps(first(count), p); }
  ALLOT_INLINE F load_partial(const uint16_t* p, int count) {
    return widen(_mm256_maskz_loadu_epi16(first(count), p));
  }
  ALLOT_INLINE void load_even_odd(const uint16_t* p, F& even, F& odd) {
    const __m512i pairs = _mm512_loadu_si512(p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  ALLOT_INLINE __m256i narrow(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded =
        _mm512_mask_or_epi32(_mm512_srli_epi32(sum, 16), nan, high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(rounded);
  }
  ALLOT_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  ALLOT_INLINE void store(uint16_t* p, F x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
  ALLOT_INLINE void store_partial(float* p, F x, int count) { _mm512_mask_storeu_ps(p, first(count), x); }
  ALLOT_INLINE void store_partial(uint16_t* p, F x, int count) {
    _mm256_mask_storeu_epi16(p, first(count), narrow(x));
  }
  ALLOT_INLINE F set1(float x) { return _mm512_set1_ps(x); }
  ALLOT_INLINE I set1(int32_t x) { return _mm512_set1_epi32(x); }
  ALLOT_INLINE F zero() { return _mm512_setzero_ps(); }
  ALLOT_INLINE I load_index(const int32_t* p) { return _mm512_loadu_si512(p); }

  ALLOT_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  ALLOT_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  ALLOT_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
  ALLOT_INLINE F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  ALLOT_INLINE F floor(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
  ALLOT_INLINE F select_less(I a, I b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmplt_epi32_mask(a, b), y, x);
  }
  ALLOT_INLINE F select_less(F a, F b, F x, F y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
  }
  ALLOT_INLINE F keep_less(F x, F limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), x);
  }
  ALLOT_INLINE uint32_t less_bits(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }

  ALLOT_INLINE F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }
  ALLOT_INLINE F flush_exponent(F y, F power) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ), power);
  }
  ALLOT_INLINE F clamp_exponent(F y) { return y; }  // scalef saturates by itself

  ALLOT_INLINE float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
  ALLOT_INLINE float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
  // A tree of 15 additions: each step adds two registers' lanes into one register that holds both halves.
  ALLOT_INLINE F reduce_add_each(const F (&x)[kLanes]) {
    F quad[8];
    for (int i = 0; i < 8;
         ++i) {  // lanes of quad[i], per 128 bits: a01 b01 a23 b23 of a = x[i], b = x[i + 8]
      quad[i] = _mm512_unpacklo_ps(x[i], x[i + 8]) + _mm512_unpackhi_ps(x[i], x[i + 8]);
    }
    F pair[4];
    for (int i = 0; i < 4; ++i) {  // per 128 bits: x[i], x[i + 8], x[i + 4], x[i + 12] summed over four lanes
      pair[i] = _mm512_shuffle_ps(quad[i], quad[i + 4], _MM_SHUFFLE(1, 0, 1, 0)) +
                _mm512_shuffle_ps(quad[i], quad[i + 4], _MM_SHUFFLE(3, 2, 3, 2));
    }
    F half[2];
    for (int i = 0; i < 2; ++i) {  // two 128-bit blocks of pair[i], then two of pair[i + 2]
      half[i] = _mm512_shuffle_f32x4(pair[i], pair[i + 2], _MM_SHUFFLE(1, 0, 1, 0)) +
                _mm512_shuffle_f32x4(pair[i], pair[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    }
    const F sums = _mm512_shuffle_f32x4(half[0], half[1], _MM_SHUFFLE(2, 0, 2, 0)) +
                   _mm512_shuffle_f32x4(half[0], half[1], _MM_SHUFFLE(3, 1, 3, 1));
    // Blocks hold x[{0,8,4,12}], x[{2,10,6,14}], x[{1,9,5,13}], x[{3,11,7,15}].
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15),
                                 sums);
  }
  // Lane j of x[i] becomes lane i of x[j].
  ALLOT_INLINE void transpose(F (&x)[kLanes]) {
    F pairs[kLanes];
    for (int i = 0; i < kLanes; i += 2) {  // 2 x 2 blocks
      pairs[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    F quads[kLanes];
    const auto unpack_low = [](F a, F b) {
      return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto unpack_high = [](F a, F b) {
      return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    for (int i = 0; i < kLanes;
         i += 4) {  // 4 x 4 blocks: quads[i + k] has column 4 b + k of rows i .. i + 3 in block b
      quads[i] = unpack_low(pairs[i], pairs[i + 2]);
      quads[i + 1] = unpack_high(pairs[i], pairs[i + 2]);
      quads[i + 2] = unpack_low(pairs[i + 1], pairs[i + 3]);
      quads[i + 3] = unpack_high(pairs[i + 1], pairs[i + 3]);
    }
    for (int k = 0; k < 4; ++k) {  // blocks to their rows
      const F low_even = _mm512_shuffle_f32x4(quads[k], quads[4 + k], _MM_SHUFFLE(2, 0, 2, 0));
      const F low_odd = _mm512_shuffle_f32x4(quads[k], quads[4 + k], _MM_SHUFFLE(3, 1, 3, 1));
      const F high_even = _mm512_shuffle_f32x4(quads[8 + k], quads[12 + k], _MM_SHUFFLE(2, 0, 2, 0));
      const F high_odd = _mm512_shuffle_f32x4(quads[8 + k], quads[12 + k], _MM_SHUFFLE(3, 1, 3, 1));
      x[k] = _mm512_shuffle_f32x4(low_even, high_even, _MM_SHUFFLE(2, 0, 2, 0));
      x[4 + k] = _mm512_shuffle_f32x4(low_odd, high_odd, _MM_SHUFFLE(2, 0, 2, 0));
      x[8 + k] = _mm512_shuffle_f32x4(low_even, high_even, _MM_SHUFFLE(3, 1, 3, 1));
      x[12 + k] = _mm512_shuffle_f32x4(low_odd, high_odd, _MM_SHUFFLE(3, 1, 3, 1));
    }
  }
  // Pairs of bfloat16, `low` in the lower half of each lane; rounded half up in magnitude.
  ALLOT_INLINE F pack_pairs(F low, F high) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low_bits = _mm512_add_epi32(_mm512_castps_si512(low), half);
    const __m512i high_bits = _mm512_add_epi32(_mm512_castps_si512(high), half);
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_srli_epi32(low_bits, 16), _mm512_and_si512(high_bits, upper)));
  }
  template <int kShift>
  ALLOT_INLINE F add_shifted(F x) {
    const __m512i zeros = _mm512_setzero_si512();
    return x + _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(x), zeros, kLanes - kShift));
  }
  ALLOT_INLINE F prefix_sum(F x) { return add_shifted<8>(add_shifted<4>(add_shifted<2>(add_shifted<1>(x)))); }
  ALLOT_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
};

}  // namespace allot::kernels::cpu
