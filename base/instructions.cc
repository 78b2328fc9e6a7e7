#include "base/instructions.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"

namespace allot {
namespace {

constexpr const char* kVariable = "ALLOT_MAX_INSTRUCTIONS";

}  // namespace

const char* name(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAmx:
      return "amx";
  }
  return "unknown";
}

InstructionSet allowed_instructions() {
  static const InstructionSet allowed = [] {
    const char* const text = std::getenv(kVariable);
    if (text == nullptr) return InstructionSet::kAmx;
    for (const auto set :
         {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512, InstructionSet::kAmx}) {
      if (std::strcmp(text, name(set)) == 0) return set;
    }
    throw InvalidArgument(
        std::string(kVariable) + " is '" + text +
        "', expected portable, avx2, avx512 or amx; unset it to use all that the processor has");
  }();
  return allowed;
}

bool has_avx512() {
#if defined(__x86_64__)
  if (allowed_instructions() < InstructionSet::kAvx512) return false;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

bool has_amx() {
#if defined(__x86_64__)
  static const bool has = [] {
    // Not every compiler knows these by name.
    constexpr unsigned kBfloat16Tiles = 1u << 22, kTiles = 1u << 24;  // CPUID.(EAX=7, ECX=0):EDX
    constexpr unsigned kBfloat16Vectors = 1u << 5;                    // CPUID.(EAX=7, ECX=1):EAX
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    if (!(edx & kBfloat16Tiles) || !(edx & kTiles)) return false;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & kBfloat16Vectors)) return false;
    constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

}  // namespace allot
