// Kernels for processors with AVX2 and FMA.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#include "kernels/cpu/make_kernels.h"

namespace allot::kernels::cpu {

const Kernels kAvx2Kernels = MakeKernels<GenericVec<8>>::kTable;

}  // namespace allot::kernels::cpu
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
