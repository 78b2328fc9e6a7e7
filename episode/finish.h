// Why a reply ended.
#pragma once

#include <cstdint>

namespace allot {

enum class Finish : uint8_t {
  kEos,     // the model ended it
  kStop,    // it held its final answer
  kLength,  // it was cut off at the limit of new tokens
};

}  // namespace allot
