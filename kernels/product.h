// Products of rows with a matrix that stays the same, on the CPU. Storage is float32 or bfloat16. A result is
// summed in float32, the width in ascending order, by fused multiplications and additions where the processor
// has them; the bias comes last, and the result is rounded once (round to nearest even). With AMX, bfloat16
// products are summed by 32 elements of the width: those at even places and those at odd ones, each in
// ascending order, then both together; numbers below the least normal float32 count as 0. So a result has the
// same bits whatever rows are multiplied beside it and on however many threads. All functions throw
// InvalidArgument, naming the field, the value and what was expected; nothing is written in that case.
#pragma once

#include <cstdint>

#include "kernels/estimator.h"

namespace allot::kernels {

// Bytes of a matrix [columns, width] in the order in which multiply() reads it on this processor: columns are
// filled up to a multiple of sixteen, for AMX columns and width to one of 32.
int64_t packed_matrix_bytes(int64_t columns, int64_t width, DType dtype);

// Puts matrix [columns, width] into that order; `packed` has packed_matrix_bytes and does not overlap it.
void pack_matrix(const void* matrix, int64_t columns, int64_t width, DType dtype, void* packed,
                 int num_threads);

// out[r, c] = sum over i of input[r, i] * matrix[c, i], plus bias[c].
struct ProductParams {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t columns = 0;
  DType dtype = DType::kFloat32;  // of all of them
  const void* input = nullptr;    // [rows, width]
  const void* matrix = nullptr;   // [columns, width] as pack_matrix leaves it
  const void* bias = nullptr;     // [columns]; null = none
  void* out = nullptr;            // [rows, columns]; does not overlap the others
};
void multiply(const ProductParams& params, int num_threads);

}  // namespace allot::kernels
