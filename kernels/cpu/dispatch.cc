// Chooses the instruction set.
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/launch.h"

namespace allot::kernels::cpu {
namespace {

// AMX tiles can be used when the processor has them and Linux grants this process the use of their state.
bool may_use_tiles() {
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16")) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const char* name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

Isa best_isa() {
  static const Isa best = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return may_use_tiles() ? Isa::kAmx : Isa::kAvx512;
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
    case Isa::kAmx:
      return kAmxKernels;
  }
  return kPortableKernels;
}

}  // namespace allot::kernels::cpu
