// Names("--total", 3, 1, 1000) matches a message that names these values, whatever words stand around them.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <filesystem>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/names_matcher.h"

namespace allot {

// Of texts, numbers and paths.
template <class... Values>
NamesMatcher Names(const Values&... values) {
  static_assert(sizeof...(values) > 0);
  const auto text_of = [](const auto& value) -> std::string {
    if constexpr (std::same_as<std::decay_t<decltype(value)>, std::filesystem::path>) {
      return value.string();
    } else {
      return fmt::format("{}", value);
    }
  };
  return NamesMatcher(std::vector<std::string>{text_of(values)...});
}

}  // namespace allot
