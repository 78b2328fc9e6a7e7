// draw_uniform for sixteen rows at once.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/cpu/vec_generic.h"

namespace allot::kernels::cpu {

// u[i] = draw_uniform(rows[i], draw) for rows of one sequence and layer. The rounds of philox4x32_10 are
// loops over lanes, which compilers turn into vector multiplications; V only gives each instruction set
// its own instantiation.
template <class V>
void draw_uniforms(const DrawRow (&rows)[kLanes], uint32_t draw, float* u) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = rows[i].question;
    c1[i] = (rows[i].layer << 16) | rows[i].head;
    c2[i] = rows[i].position;
    c3[i] = draw / 4;
  }
  uint32_t key0 = rows[0].key.run_seed;
  uint32_t key1 = rows[0].key.sampling_seed;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t b = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(b);
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(a);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint32_t* words[4] = {c0, c1, c2, c3};
  for (int i = 0; i < kLanes; ++i) u[i] = static_cast<float>(words[draw % 4][i] >> 8) * 0x1p-24f;
}

}  // namespace allot::kernels::cpu
