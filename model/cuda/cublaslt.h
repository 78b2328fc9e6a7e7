// What Matmul uses of cuBLASLt: its handles as owners, products as this project has them, and its errors.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

namespace allot::model::cuda {

inline constexpr uintptr_t kMatmulAlignment = 16;                    // of every array
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{64} << 20;  // that algorithms may take

// A handle of cuBLASLt or of the CUDA runtime, destroyed with its owner.
template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    (void)kDestroy(handle);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;

using Library = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Throws CudaError, which begins with `what`, unless the status is success.
void check_library(cublasStatus_t status, std::string_view what);

template <class T>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_library(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
                "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_library(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
                "cublasLtMatmulPreferenceSetAttribute");
}

Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t leading);

// cuBLASLt stores matrices by columns: to it, a row-major array is the transposed matrix. So `out` is a
// matrix D of [out_features, rows], the product of the transposed weights A and of the input B, and the bias
// runs along the rows of D.
Operation make_operation(bool bias);

// Whether the library multiplies 8-bit rows with a scale for each of them.
#if CUBLAS_VERSION >= 120900
inline constexpr bool kScalesRows = true;
#else
inline constexpr bool kScalesRows = false;
#endif
// Does nothing where it does not.
void set_row_scales(const Operation& operation);

// One rounding and a fixed order of every sum; see Matmul.
Preference make_preference();

}  // namespace allot::model::cuda
