// Kernels for processors with AVX2 and FMA.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/target.h"

ALLOT_BEGIN_TARGET("avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/vec_avx2.h"

namespace allot::kernels::cpu {

const Kernels kAvx2Kernels = MakeKernels<Avx2Vec>::kTable;

}  // namespace allot::kernels::cpu
ALLOT_END_TARGET
