// Chooses the instruction set.
#include "base/instructions.h"
#include "kernels/cpu/launch.h"

namespace allot::kernels::cpu {

Isa best_isa() {
  static const Isa best = [] {
    const Isa allowed = allowed_instructions();
    if (has_avx512()) return allowed >= Isa::kAmx && has_amx() ? Isa::kAmx : Isa::kAvx512;
    __builtin_cpu_init();
    if (allowed >= Isa::kAvx2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2")) {
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
    case Isa::kAmx:
      return kAmxKernels;
  }
  return kPortableKernels;
}

}  // namespace allot::kernels::cpu
