#include "model/cuda/cublaslt.h"

#include <spdlog/fmt/fmt.h>

#include "base/error.h"

namespace allot::model::cuda {

void check_library(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(
      fmt::format("{}: {} ({})", what, cublasLtGetStatusString(status), cublasLtGetStatusName(status)));
}

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_library(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                           static_cast<uint64_t>(columns), leading),
                "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Operation make_operation(bool bias) {
  cublasLtMatmulDesc_t descriptor = nullptr;
  check_library(cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                "cublasLtMatmulDescCreate");
  Operation operation(descriptor);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (bias) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // The choice of algorithms depends on the alignment of this address, which is not read. It is the least
    // alignment that is allowed, so that the choice fits every later bias.
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, kMatmulAlignment);
  }
  return operation;
}

void set_row_scales([[maybe_unused]] const Operation& operation) {
#if CUBLAS_VERSION >= 120900
  for (const auto side : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
    set(operation, side, static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F));
  // As of the bias, only the alignment counts before a product.
  for (const auto side : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
    set(operation, side, kMatmulAlignment);
#endif
}

Preference make_preference() {
  cublasLtMatmulPreference_t created = nullptr;
  check_library(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kMatmulWorkspaceBytes));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto array :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, array, static_cast<uint32_t>(kMatmulAlignment));
  }
  return preference;
}

}  // namespace allot::model::cuda
