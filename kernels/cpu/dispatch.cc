// Which instruction set runs.
#include "kernels/cpu/launch.h"

namespace allot::kernels::cpu {

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

Isa best_isa() {
  static const Isa best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return Isa::kAvx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
      return Isa::kAvx2;
    }
    return Isa::kPortable;
  }();
  return best;
}

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      break;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512:
      return kAvx512Kernels;
  }
  return kPortableKernels;
}

}  // namespace allot::kernels::cpu
