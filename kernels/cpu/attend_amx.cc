// Kernels for processors with AVX-512 and AMX tiles of bfloat16.
#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/target.h"

ALLOT_BEGIN_TARGET(
    "amx-tile,amx-bf16,avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/product_amx.h"
#include "kernels/cpu/vec_amx.h"

namespace allot::kernels::cpu {

namespace {

// Tiles hold bfloat16: what is in float32 is what it is without them.
void attend(const AttentionParams& params, const Item& item, Workspace& work) {
  if (params.dtype == DType::kFloat32) {
    kAvx512Kernels.attend(params, item, work);
  } else {
    attend_item<AmxVec, uint16_t>(params, item, work);
  }
}

void multiply(const ProductParams& params, int64_t begin, int64_t end, const ProductScratch& scratch) {
  if (multiplies_in_tiles(Isa::kAmx, params.dtype)) {
    multiply_in_tiles(params, begin, end, scratch);
  } else {
    kAvx512Kernels.multiply(params, begin, end, scratch);
  }
}

}  // namespace

using Rows = MakeKernels<AmxVec>;
const Kernels kAmxKernels{attend,
                          Rows::rms_norm,
                          Rows::rotate_and_store,
                          Rows::store_value_norms,
                          Rows::activate_and_multiply,
                          Rows::row_divergence,
                          multiply};

}  // namespace allot::kernels::cpu
ALLOT_END_TARGET
