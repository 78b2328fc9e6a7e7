// Chooses the instruction set.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/launch.h"

namespace allot::kernels::cpu {
namespace {

// AMX tiles can be used when the processor has them and Linux grants this process the use of their state.
bool may_use_tiles() {
  // Not every compiler knows these by name.
  constexpr unsigned kBfloat16Tiles = 1u << 22, kTiles = 1u << 24;  // CPUID.(EAX=7, ECX=0):EDX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!(edx & kBfloat16Tiles) || !(edx & kTiles)) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

Isa best_isa() {
  static const Isa best = [] {
    const Isa allowed = allowed_instructions();
    if (has_avx512()) return allowed >= Isa::kAmx && may_use_tiles() ? Isa::kAmx : Isa::kAvx512;
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
