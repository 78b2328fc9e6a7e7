// Sixteen float lanes as an array of narrower registers, written with compiler vector extensions: four of
// four lanes for baseline x86-64 (and other architectures), two of eight under vec_avx2.h. Same interface as
// vec_avx512.h; the kernels are templates over either. The register width keeps the instantiations of
// different instruction sets apart, so that the linker cannot merge them. Registers are cast by the
// compiler's own __builtin_bit_cast, since Clang compiles std::bit_cast for the baseline.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/bfloat16.h"
#include "kernels/cpu/lanes.h"

#define ALLOT_INLINE static inline __attribute__((always_inline))

namespace allot::kernels::cpu {

template <int kWidth>
struct GenericVec {
  static constexpr int kParts = kLanes / kWidth;

  // One value per register; the element type picks the operators' meaning.
  template <class Element>
  struct Lanes {
    typedef Element Part __attribute__((vector_size(kWidth * sizeof(Element))));
    Part part[kParts];

    template <class Operation>
    ALLOT_INLINE Lanes make(const Operation& operation) {
      Lanes result;
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) result.part[i] = operation(i);
      return result;
    }
    friend inline __attribute__((always_inline)) Lanes operator+(const Lanes& a, const Lanes& b) {
      return make([&](int i) { return a.part[i] + b.part[i]; });
    }
    friend inline __attribute__((always_inline)) Lanes operator-(const Lanes& a, const Lanes& b) {
      return make([&](int i) { return a.part[i] - b.part[i]; });
    }
    friend inline __attribute__((always_inline)) Lanes operator*(const Lanes& a, const Lanes& b) {
      return make([&](int i) { return a.part[i] * b.part[i]; });
    }
    friend inline __attribute__((always_inline)) Lanes operator/(const Lanes& a, const Lanes& b) {
      return make([&](int i) { return a.part[i] / b.part[i]; });
    }
  };
  using F = Lanes<float>;
  using I = Lanes<int32_t>;
  using FPart = typename F::Part;
  using IPart = typename I::Part;
  using UPart = typename Lanes<uint32_t>::Part;
  using HPart = typename Lanes<uint16_t>::Part;

  static constexpr bool kTiles = false;  // matrix tiles: vec_amx.h

  // Register tiles: keys of a score tile, rows of a value tile, gathered sums of sixteen lanes. Sized for 16
  // registers.
  static constexpr int kKeyTile = 2 * kWidth / 4;
  static constexpr int kRowTile = kWidth / 4;
  static constexpr int kGatherSums = 3 * kWidth / 4;
  // With more keys than this for each systematic sample of a prompt's row, reading the values that have one
  // is faster than the product with all.
  static constexpr int kKeysASample = 4;

  // Register by register: GCC would copy the whole array through the stack in smaller pieces.
  ALLOT_INLINE F load(const float* p) {
    return F::make([&](int i) {
      FPart x;
      std::memcpy(&x, p + i * kWidth, sizeof x);
      return x;
    });
  }
  ALLOT_INLINE F load(const uint16_t* p) {
    return F::make([&](int i) {
      HPart half;
      std::memcpy(&half, p + i * kWidth, sizeof half);
      return __builtin_bit_cast(FPart, __builtin_convertvector(half, UPart) << 16);
    });
  }
  // The first `count` lanes from memory, zeros above.
  template <class T>
  ALLOT_INLINE F load_partial(const T* p, int count) {
    T copy[kLanes] = {};
    for (int i = 0; i < count; ++i) copy[i] = p[i];
    return load(copy);
  }
  // 32 consecutive bfloat16 as those of even and those of odd index.
  ALLOT_INLINE void load_even_odd(const uint16_t* p, F& even, F& odd) {
    const auto pairs = [&](int i) {
      UPart x;
      std::memcpy(&x, p + i * 2 * kWidth, sizeof x);
      return x;
    };
    even = F::make([&](int i) { return __builtin_bit_cast(FPart, pairs(i) << 16); });
    odd = F::make([&](int i) { return __builtin_bit_cast(FPart, pairs(i) & 0xFFFF0000u); });
  }
  ALLOT_INLINE void store(float* p, const F& x) {
    for (int i = 0; i < kParts; ++i) std::memcpy(p + i * kWidth, &x.part[i], sizeof x.part[i]);
  }
  ALLOT_INLINE void store(uint16_t* p, const F& x) {
    for (int i = 0; i < kParts; ++i) {
      const UPart bits = __builtin_bit_cast(UPart, x.part[i]);
      const UPart rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
      const UPart result = x.part[i] == x.part[i] ? rounded : (bits >> 16) | 0x40u;
      const HPart half = __builtin_convertvector(result, HPart);
      std::memcpy(p + i * kWidth, &half, sizeof half);
    }
  }
  template <class T>
  ALLOT_INLINE void store_partial(T* p, const F& x, int count) {
    T copy[kLanes];
    store(copy, x);
    for (int i = 0; i < count; ++i) p[i] = copy[i];
  }
  ALLOT_INLINE F set1(float x) {
    return F::make([&](int) { return x - FPart{}; });  // adding 0 would be an addition: it changes -0
  }
  ALLOT_INLINE I set1(int32_t x) {
    return I::make([&](int) { return IPart{} + x; });
  }
  ALLOT_INLINE F zero() {
    return F::make([](int) { return FPart{}; });
  }
  ALLOT_INLINE I load_index(const int32_t* p) {
    return I::make([&](int i) {
      IPart x;
      std::memcpy(&x, p + i * kWidth, sizeof x);
      return x;
    });
  }

  ALLOT_INLINE F fma(const F& a, const F& b, const F& c) {
    return F::make([&](int i) { return a.part[i] * b.part[i] + c.part[i]; });
  }
  ALLOT_INLINE F max(const F& a, const F& b) {
    return F::make([&](int i) { return a.part[i] > b.part[i] ? a.part[i] : b.part[i]; });
  }
  ALLOT_INLINE F min(const F& a, const F& b) {
    return F::make([&](int i) { return a.part[i] < b.part[i] ? a.part[i] : b.part[i]; });
  }
  // For |x| < 2^22.
  ALLOT_INLINE F round(const F& x) {
    return F::make([&](int i) { return (x.part[i] + 0x1.8p23f) - 0x1.8p23f; });
  }
  ALLOT_INLINE F floor(const F& x) {
    const F rounded = round(x);
    return F::make(
        [&](int i) { return rounded.part[i] > x.part[i] ? rounded.part[i] - 1.0f : rounded.part[i]; });
  }
  // Lanes of `x` where a < b, else of `y`.
  ALLOT_INLINE F select_less(const I& a, const I& b, const F& x, const F& y) {
    return F::make([&](int i) { return a.part[i] < b.part[i] ? x.part[i] : y.part[i]; });
  }
  ALLOT_INLINE F select_less(const F& a, const F& b, const F& x, const F& y) {
    return F::make([&](int i) { return a.part[i] < b.part[i] ? x.part[i] : y.part[i]; });
  }
  // Lanes of `x` below `limit`, zeros elsewhere.
  ALLOT_INLINE F keep_less(const F& x, const F& limit) {
    return F::make([&](int i) { return x.part[i] < limit.part[i] ? x.part[i] : FPart{}; });
  }
  // Bit i: lane i of a < lane i of b.
  ALLOT_INLINE uint32_t less_bits(const F& a, const F& b) {
    uint32_t bits = 0;
    for (int i = 0; i < kParts; ++i) {
      const IPart less = a.part[i] < b.part[i];
      for (int j = 0; j < kWidth; ++j) bits |= static_cast<uint32_t>(less[j] & 1) << (i * kWidth + j);
    }
    return bits;
  }

  // 2^n times `x` for whole n in [-126, 127].
  ALLOT_INLINE F scale_by_power(const F& x, const F& n) {
    return F::make([&](int i) {
      return x.part[i] * __builtin_bit_cast(FPart, (__builtin_convertvector(n.part[i], IPart) + 127) << 23);
    });
  }
  // `power` where y >= -126, zeros below; NaN stays NaN.
  ALLOT_INLINE F flush_exponent(const F& y, const F& power) {
    return F::make([&](int i) { return y.part[i] < -126.0f ? FPart{} : power.part[i]; });
  }
  ALLOT_INLINE F clamp_exponent(const F& y) {
    return F::make([&](int i) {
      const FPart low = y.part[i] < -126.0f ? FPart{} - 126.0f : y.part[i];
      return low > 127.0f ? FPart{} + 127.0f : low;
    });
  }

  ALLOT_INLINE float reduce_add(const F& x) {
    FPart sum = x.part[0];
    for (int i = 1; i < kParts; ++i) sum += x.part[i];
    float total = 0;
    for (int j = 0; j < kWidth; ++j) total += sum[j];
    return total;
  }
  ALLOT_INLINE float reduce_max(const F& x) {
    float lanes[kLanes];
    store(lanes, x);
    float largest = lanes[0];
    for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
  }
  // Lane i is the sum of the lanes of x[i].
  ALLOT_INLINE F reduce_add_each(const F (&x)[kLanes]) {
    float sums[kLanes];
    for (int i = 0; i < kLanes; ++i) sums[i] = reduce_add(x[i]);
    return load(sums);
  }
  // Lane i is the sum of lanes 0 .. i.
  ALLOT_INLINE F prefix_sum(const F& x) {
    float sums[kLanes];
    store(sums, x);
    for (int i = 1; i < kLanes; ++i) sums[i] += sums[i - 1];
    return load(sums);
  }
  // Lane j of x[i] becomes lane i of x[j].
  ALLOT_INLINE void transpose(F (&x)[kLanes]) {
    float rows[kLanes][kLanes], columns[kLanes][kLanes];
    for (int i = 0; i < kLanes; ++i) store(rows[i], x[i]);
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < kLanes; ++j) columns[j][i] = rows[i][j];
    }
    for (int i = 0; i < kLanes; ++i) x[i] = load(columns[i]);
  }
  ALLOT_INLINE void prefetch(const void* p) {
    __builtin_prefetch(p);
  }
};

}  // namespace allot::kernels::cpu
