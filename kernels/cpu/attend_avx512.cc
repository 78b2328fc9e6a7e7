// Kernels for processors with AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                    \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/vec_avx512.h"

namespace allot::kernels::cpu {

const Kernels kAvx512Kernels = MakeKernels<Avx512Vec>::kTable;

}  // namespace allot::kernels::cpu
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
