// What the host checks in this folder require of params in addition to those of
// the CPU (kernels/row_checks.h).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "kernels/row_checks.h"

namespace allot::kernels::cuda {

// Rows are the x dimension of a grid. In activate_and_multiply, blocks of 256 elements or more are
// the y dimension.
inline constexpr RowPlace kPlace{
    .suffix = " on CUDA", .memory = "device memory", .most_rows = INT32_MAX, .most_width = 65535 * 256};

// Of arrays that are read 16 bytes at a time alone.
inline void check_alignment(const RowCheck& check,
                            std::initializer_list<std::pair<const char*, const void*>> pointers) {
  for (const auto& [field, pointer] : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
      check.refuse("{} is at {}; expected a multiple of 16 bytes", field, pointer);
  }
}

}  // namespace allot::kernels::cuda
