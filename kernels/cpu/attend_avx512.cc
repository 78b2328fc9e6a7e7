// Kernels for processors with AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/target.h"

ALLOT_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/vec_avx512.h"

namespace allot::kernels::cpu {

const Kernels kAvx512Kernels = MakeKernels<Avx512Vec>::kTable;

}  // namespace allot::kernels::cpu
ALLOT_END_TARGET
