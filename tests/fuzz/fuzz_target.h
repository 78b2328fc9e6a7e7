// What every target is: one function that takes any bytes. libFuzzer calls it in the build `fuzz`;
// replay_main.cc calls it on the committed inputs in every other build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace allot::fuzz {

// An input for which a promise does not hold ends the process, as a sanitizer's report does.
inline void require(bool holds, const std::string& promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise.c_str());
  std::abort();
}

}  // namespace allot::fuzz
