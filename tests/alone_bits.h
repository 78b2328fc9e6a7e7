// What a processor's matrix library gives.
#pragma once

#include <gtest/gtest.h>

namespace allot {

// Whether a row of a matrix product has the same bits whatever rows are multiplied with it, as
// docs/internals/engine.md, "What is reproducible", says for processors with AVX-512. With AVX2 alone the
// library multiplies different numbers of rows in different ways.
inline bool rows_of_products_have_bits_of_their_own() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return true;
#endif
}

}  // namespace allot

#define ALLOT_SKIP_UNLESS_ROWS_HAVE_BITS_OF_THEIR_OWN()    \
  if (!::allot::rows_of_products_have_bits_of_their_own()) \
  GTEST_SKIP() << "this processor has no AVX-512: bits of a product's rows depend on how many there are"
