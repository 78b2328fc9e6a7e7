// Weights made at random instead of read from a checkpoint, so that a model can run at full size where its
// weights are not available. Element i of a tensor is a constant, or
//
//   step * (2 u - 65535)
//
// where u is 16 bits of a Philox4x32-10 block: of the block with
//   counter (low and high half of i / 8, low and high half of the FNV-1a hash of the tensor's name) and
//   key (low and high half of the seed)
// word (i % 8) / 2, its lower half for even i and its upper half for odd i. So a block's bytes, as a little
// endian machine stores its words, are the 16-bit numbers of eight elements in order. The numbers are uniform
// on a grid that is symmetric about 0.
//
// 2 u - 65535 is exact in float32 and the product is rounded once (a weight of bfloat16 once more), so every
// host and device makes the same bits, in any order and any split among threads. Changing this formula
// changes models: raise kRandomWeightsVersion.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/philox.h"

namespace allot::model {

inline constexpr int kRandomWeightsVersion = 1;
// Elements of one Philox block.
inline constexpr uint64_t kRandomBlock = 8;

// What a tensor's elements are made from. Plain data: may be passed to a CUDA kernel by value.
struct RandomTensor {
  uint64_t seed = 0;
  uint64_t name_hash = 0;
  float step = 0;  // 0: every element is `constant`
  float constant = 0;
};

// The tensor called `name` (as in a checkpoint) with mean 0 and this standard deviation, within
// +-sqrt(3) standard deviations. `standard_deviation` >= 0.
RandomTensor random_tensor(uint64_t seed, std::string_view name, double standard_deviation);

ALLOT_HOST_DEVICE constexpr PhiloxBlock random_block(const RandomTensor& tensor, uint64_t block) {
  return philox4x32_10(
      {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
        static_cast<uint32_t>(tensor.name_hash), static_cast<uint32_t>(tensor.name_hash >> 32)}},
      static_cast<uint32_t>(tensor.seed), static_cast<uint32_t>(tensor.seed >> 32));
}

// The element whose 16 bits are `bits`.
ALLOT_HOST_DEVICE constexpr float random_value(const RandomTensor& tensor, uint32_t bits) {
  return tensor.step == 0 ? tensor.constant
                          : tensor.step * static_cast<float>(2 * static_cast<int32_t>(bits) - 65535);
}

// Element `index`, row major. Each call computes a Philox block: for tests and for small tensors.
ALLOT_HOST_DEVICE constexpr float random_element(const RandomTensor& tensor, uint64_t index) {
  const uint32_t word = random_block(tensor, index / kRandomBlock).word[index % kRandomBlock / 2];
  return random_value(tensor, index % 2 == 0 ? word & 0xFFFFu : word >> 16);
}

// Elements of a tensor in runs of equal length: run r is elements first + r * pitch and the `length` - 1
// behind.
struct ElementRuns {
  int64_t first = 0;
  int64_t length = 0;  // >= 1
  int64_t pitch = 0;   // >= length

  // Where the tensor has the element that is the `index`th of the runs.
  ALLOT_HOST_DEVICE constexpr int64_t at(int64_t index) const {
    return first + index / length * pitch + index % length;
  }
};

// Elements first, first + 1, … of `tensor` as float32, or as bfloat16 rounded to nearest even. The same bits
// as random_element, by vector instructions where the processor has them.
void fill_random(const RandomTensor& tensor, uint64_t first, std::span<float> out);
void fill_random_bfloat16(const RandomTensor& tensor, uint64_t first, std::span<uint16_t> out);

}  // namespace allot::model
