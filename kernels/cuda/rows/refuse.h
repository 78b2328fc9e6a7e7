// How the host checks of this folder refuse.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "base/error.h"

namespace allot::kernels::cuda {

template <class... Args>
[[noreturn]] void refuse(const char* operation, fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument(fmt::format("{}: ", operation) + fmt::format(text, std::forward<Args>(args)...));
}

inline void check_pointer(const char* operation, const char* field, const void* pointer) {
  if (pointer == nullptr) refuse(operation, "{} is null; it must point to device memory", field);
}

}  // namespace allot::kernels::cuda
