// What the host checks in this folder require of params in addition to those of
// the CPU (kernels/row_checks.h).
#pragma once

#include <cstdint>

#include "kernels/row_checks.h"

namespace allot::kernels::cuda {

// Rows are the x dimension of a grid. In activate_and_multiply, blocks of 256 elements or more are
// the y dimension.
inline constexpr RowPlace kPlace{
    .suffix = " on CUDA", .memory = "device memory", .most_rows = INT32_MAX, .most_width = 65535 * 256};

}  // namespace allot::kernels::cuda
