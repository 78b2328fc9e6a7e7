// Instructions of the processor that the program runs on, as far as it may use them.
#pragma once

namespace allot {

// Instruction sets that code is compiled for, in ascending order; each includes those before it.
enum class InstructionSet { kPortable, kAvx2, kAvx512, kAmx };

// "portable", "avx2", "avx512", "amx"
const char* name(InstructionSet set);

// The best of them that may be used: amx, or what the environment variable ALLOT_MAX_INSTRUCTIONS names, so
// that an older processor can be measured on a newer one. Read once. Throws InvalidArgument for another name.
InstructionSet allowed_instructions();

// Whether the processor has AVX-512 F, BW, DQ and VL, those that code for AVX-512 is compiled for, and it is
// allowed.
bool has_avx512();

// Whether the processor has matrix tiles of bfloat16 (AMX), with the conversions of AVX-512 that came before
// them, and Linux grants this process their use, for which it is asked. Not whether they are allowed:
// libraries use them all the same.
bool has_amx();

}  // namespace allot
