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

// Of arrays that are read so many bytes at a time alone.
inline void check_alignment(const RowCheck& check,
                            std::initializer_list<std::pair<const char*, const void*>> pointers,
                            uintptr_t bytes = 16) {
  for (const auto& [field, pointer] : pointers) {
    if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0)
      check.refuse("{} is at {}; expected a multiple of {} bytes", field, pointer, bytes);
  }
}

}  // namespace allot::kernels::cuda
