// Kernels for processors with AVX-512 and AMX tiles of bfloat16.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/vec_amx.h"

namespace allot::kernels::cpu {

const Kernels kAmxKernels = MakeKernels<AmxVec>::kTable;

}  // namespace allot::kernels::cpu
#pragma GCC pop_options
