// Philox4x32-10 counter-based random numbers (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011), usable on host and device. Every random draw of allot is a pure function of its
// coordinates, so the same episode gives the same draws on any worker, in any batch slot, in any order.
#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define ALLOT_HOST_DEVICE __host__ __device__
#else
#define ALLOT_HOST_DEVICE
#endif

namespace allot {

struct PhiloxBlock {
  uint32_t word[4];
};

// Ten Philox4x32 rounds of `counter` under `key`.
ALLOT_HOST_DEVICE constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Key of every draw of one sequence: (run seed, sampling seed of the episode).
struct DrawKey {
  uint32_t run_seed = 0;
  uint32_t sampling_seed = 0;
};

// Coordinates of the draws of one attention row or one sampled token: counter = (question, layer and head,
// position, draw). `position` is the query's 0-based position in its sequence.
struct DrawRow {
  DrawKey key;
  uint32_t question = 0;
  uint32_t layer = 0;  // < 65535; kTokenLayer for the choice of a token
  uint32_t head = 0;   // query head, < 65536
  uint32_t position = 0;
};

// Layer number that stands for "choose the next token" instead of a layer.
inline constexpr uint32_t kTokenLayer = 0xFFFF;
// Draws at and above this number belong to the Bernoulli score stage, those below to the value stage.
inline constexpr uint32_t kScoreDraws = 0x40000000u;

// Draw number `draw` of a row as 32 random bits; four consecutive draws share one Philox block.
ALLOT_HOST_DEVICE constexpr uint32_t draw_bits(const DrawRow& row, uint32_t draw) {
  const PhiloxBlock block =
      philox4x32_10({{row.question, (row.layer << 16) | row.head, row.position, draw / 4}}, row.key.run_seed,
                    row.key.sampling_seed);
  // Not block.word[draw % 4], which a GPU would read from local memory.
  const uint32_t even = draw % 4 < 2 ? block.word[0] : block.word[2];
  const uint32_t odd = draw % 4 < 2 ? block.word[1] : block.word[3];
  return draw % 2 == 0 ? even : odd;
}

// Draw number `draw` of a row, uniform on [0, 1) in steps of 2^-24: exact in float, so host and device agree.
ALLOT_HOST_DEVICE constexpr float draw_uniform(const DrawRow& row, uint32_t draw) {
  return static_cast<float>(draw_bits(row, draw) >> 8) * 0x1p-24f;
}

}  // namespace allot
