// Instructions of the processor that the program runs on.
#pragma once

namespace allot {

// AVX-512 F, BW, DQ and VL: those that code for AVX-512 is compiled for.
inline bool has_avx512() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace allot
