// The table of one instruction set's kernels. Each of the files attend_*.cc includes it with other code
// generation options and another vector type.
#pragma once

#include "kernels/cpu/decode.h"
#include "kernels/cpu/divergence_kernel.h"
#include "kernels/cpu/launch.h"
#include "kernels/cpu/prefill.h"
#include "kernels/cpu/product_kernel.h"
#include "kernels/cpu/row_kernels.h"

namespace allot::kernels::cpu {

template <class V, class T>
void attend_item(const AttentionParams& p, const Item& item, Workspace& work) {
  // Depends on the number of the sequence's queries in the launch, not of the item's: results must not depend
  // on how a launch is cut into items.
  if (p.query_start[item.sequence + 1] - p.query_start[item.sequence] == 1) {
    decode<V, T>(p, item, work);
  } else {
    Prefill<V, T>(p, item, work).run();
  }
}

template <class V>
struct MakeKernels {
  static void attend(const AttentionParams& p, const Item& item, Workspace& work) {
    if (p.dtype == DType::kFloat32) {
      attend_item<V, float>(p, item, work);
    } else {
      attend_item<V, uint16_t>(p, item, work);
    }
  }
  static void rms_norm(const RmsNormParams& p, int64_t begin, int64_t end) {
    if (p.dtype == DType::kFloat32) {
      rms_norm_rows<V, float>(p, begin, end);
    } else {
      rms_norm_rows<V, uint16_t>(p, begin, end);
    }
  }
  static void rotate_and_store(const RotaryParams& p, int64_t begin, int64_t end) {
    if (p.dtype == DType::kFloat32) {
      rotate_and_store_rows<V, float>(p, begin, end);
    } else {
      rotate_and_store_rows<V, uint16_t>(p, begin, end);
    }
  }
  static void store_value_norms(const ValueNormsParams& p, int64_t begin, int64_t end) {
    if (p.dtype == DType::kFloat32) {
      store_value_norms_rows<V, float>(p, begin, end);
    } else {
      store_value_norms_rows<V, uint16_t>(p, begin, end);
    }
  }
  static void activate_and_multiply(const ActivateAndMultiplyParams& p, int64_t begin, int64_t end) {
    if (p.dtype == DType::kFloat32) {
      activate_and_multiply_rows<V, float>(p, begin, end);
    } else {
      activate_and_multiply_rows<V, uint16_t>(p, begin, end);
    }
  }
  static void row_divergence(const DivergenceParams& p, int64_t begin, int64_t end) {
    if (p.dtype == DType::kFloat32) {
      divergence_rows<V, float>(p, begin, end);
    } else {
      divergence_rows<V, uint16_t>(p, begin, end);
    }
  }
  static void multiply(const ProductParams& p, int64_t begin, int64_t end, const ProductScratch& scratch) {
    if (p.dtype == DType::kFloat32) {
      multiply_columns<V, float>(p, begin, end, scratch);
    } else {
      multiply_columns<V, uint16_t>(p, begin, end, scratch);
    }
  }
  static constexpr Kernels kTable{
      attend, rms_norm, rotate_and_store, store_value_norms, activate_and_multiply, row_divergence, multiply};
};

}  // namespace allot::kernels::cpu
