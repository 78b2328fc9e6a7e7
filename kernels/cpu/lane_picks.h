// The keys that sixteen rows of a prompt take, as lane_select.h finds them: lane i is row i.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

// What sixteen rows choose from. `sizes` [keys, 16] is proportional to what makes a key likely, none below 0;
// choosing replaces it by the weights of the keys that are taken.
struct LaneSizes {
  float* sizes;
  int32_t keys;
  int32_t lanes;  // rows; nothing is chosen in the lanes behind them
};

// A set of keys for each row, and the weight of each of its keys. Which rows take a key is known a key at a
// time, but a row's keys are needed together: the bits are turned over sixteen keys at a time, so that there
// is one branch a row that the processor may guess wrong, not one a key. V only gives each instruction set
// its own instantiation.
template <class V>
class LanePicks {
 public:
  LanePicks(const LaneSizes& rows, Workspace& work)
      : keys_(rows.keys),
        lanes_((1u << rows.lanes) - 1),
        words_((int64_t{rows.keys} + kWordKeys - 1) / kWordKeys),
        weights_(rows.sizes),
        rows_of_key_(work.rows_of_key.reserve(words_ * kWordKeys)),
        keys_of_row_(work.keys_of_row.reserve(words_ * kLanes)) {}

  // Bit i of `rows`: row i takes `key`. To be called for every key, then `finish`.
  void take(int32_t key, uint32_t rows) { rows_of_key_[key] = static_cast<uint16_t>(rows & lanes_); }
  void finish() {
    std::fill(rows_of_key_ + keys_, rows_of_key_ + words_ * kWordKeys, uint16_t{0});
    for (int64_t first = 0; first < words_ * kWordKeys; first += kLanes) turn(first);
  }

  // Calls visit(i, key, weight) for the i-th key of a row within [first, end), in their order, first < end;
  // returns how many there are. They are counted beforehand, and the step to the next word is no branch: how
  // many keys a row takes is often the same as in the row before, where they lie is not.
  template <class Visit>
  int32_t visit(int32_t lane, int32_t first, int32_t end, const Visit& visit) const {
    // Locals: `visit` may store anywhere as far as the compiler knows.
    const uint64_t* const words = keys_of_row_ + lane * words_;
    const float* const weights = weights_ + lane;
    int32_t word = first / kWordKeys;
    const int32_t last = (end - 1) / kWordKeys;
    const uint64_t before = (uint64_t{1} << first % kWordKeys) - 1;
    const uint64_t up_to_end = ~uint64_t{0} >> (kWordKeys - 1 - (end - 1) % kWordKeys);
    int32_t count = std::popcount(words[last] & up_to_end) - std::popcount(words[word] & before);
    for (int32_t i = word; i < last; ++i) count += std::popcount(words[i]);
    uint64_t bits = words[word] & ~before;
    for (int32_t i = 0; i < count; ++i) {
      word += bits == 0 ? 1 : 0;
      const uint64_t next = words[word];
      bits = bits == 0 ? next : bits;
      while (bits == 0) [[unlikely]] bits = words[++word];
      const int32_t key = word * kWordKeys + std::countr_zero(bits);
      bits &= bits - 1;
      visit(i, key, weights[int64_t{key} * kLanes]);
    }
    return count;
  }

 private:
  static constexpr int32_t kWordKeys = 64;
  static_assert(std::endian::native == std::endian::little, "parts of words are read and written in memory");

  // Transposes the 16 x 16 bits of keys [first, first + 16): ever smaller blocks beside the diagonal change
  // places, four keys in a word.
  void turn(int64_t first) {
    uint64_t x[4];
    std::memcpy(x, rows_of_key_ + first, sizeof x);
    const auto exchange = [](uint64_t& a, uint64_t& b, int shift, uint64_t mask) {
      const uint64_t changed = ((a >> shift) ^ b) & mask;
      b ^= changed;
      a ^= changed << shift;
    };
    exchange(x[0], x[2], 8, 0x00FF00FF00FF00FF);
    exchange(x[1], x[3], 8, 0x00FF00FF00FF00FF);
    exchange(x[0], x[1], 4, 0x0F0F0F0F0F0F0F0F);
    exchange(x[2], x[3], 4, 0x0F0F0F0F0F0F0F0F);
    for (uint64_t& four : x) {
      const uint64_t twos = ((four >> 2) ^ (four >> 32)) & 0x33333333;
      four ^= twos << 2 ^ twos << 32;
      const uint64_t ones = ((four >> 1) ^ (four >> 16)) & 0x0000555500005555;
      four ^= ones << 1 ^ ones << 16;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto keys = static_cast<uint16_t>(x[lane / 4] >> (lane % 4 * 16));
      std::memcpy(reinterpret_cast<char*>(keys_of_row_ + lane * words_) + first / 8, &keys, sizeof keys);
    }
  }

  int32_t keys_;
  uint32_t lanes_;
  int64_t words_;
  const float* weights_;   // [keys, 16]
  uint16_t* rows_of_key_;  // bit i: row i
  uint64_t* keys_of_row_;  // [16, words], bit i of word w: key 64 w + i
};

}  // namespace allot::kernels::cpu
