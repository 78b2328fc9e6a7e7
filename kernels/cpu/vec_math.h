// Vector functions shared by the kernels, as templates over GenericVec or Avx512Vec.
#pragma once

#include "kernels/cpu/vec_generic.h"

namespace allot::kernels::cpu {

inline constexpr float kLog2E = 1.44269504088896341f;

// 2^y with relative error below 2.5e-7 for y in [-126, 127]; exactly 1 at 0, 0 below -126 (the smallest
// normal float), NaN for NaN. Above 127 it is 2^127 or infinity.
template <class V>
ALLOT_INLINE typename V::F exp2(typename V::F y) {
  using F = typename V::F;
  const F clamped = V::clamp_exponent(y);
  const F whole = V::round(clamped);
  const F r = clamped - whole;
  // Minimax polynomial of 2^r on [-1/2, 1/2], relative error 1.5e-7 with the constant term fixed at 1.
  F power = V::set1(1.327647263e-03f);
  power = V::fma(power, r, V::set1(9.675541343e-03f));
  power = V::fma(power, r, V::set1(5.550713272e-02f));
  power = V::fma(power, r, V::set1(2.402211972e-01f));
  power = V::fma(power, r, V::set1(6.931469671e-01f));
  power = V::fma(power, r, V::set1(1.0f));
  return V::flush_exponent(y, V::scale_by_power(power, whole));
}

}  // namespace allot::kernels::cpu
