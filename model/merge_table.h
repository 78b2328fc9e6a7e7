// The rules of byte-pair encoding: (left id, right id) -> (rank, merged id), by open addressing, since
// encoding asks it several times for each symbol.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/table_memory.h"

namespace allot::model {

class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = 0;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;  // larger than the rank of every rule
  // Room for `count` rules.
  explicit MergeTable(size_t count);
  // A later rule for the same pair replaces the earlier one.
  void insert(int32_t left, int32_t right, Merge merge);
  // kNoRank where there is no rule.
  Merge find(int32_t left, int32_t right) const noexcept {
    const uint64_t pair = pack(left, right);
    const uint64_t hash = hash_of(pair);
    const uint64_t bit = hash >> (shift_ - kFilterBits);
    if ((filter_[bit / 64] >> bit % 64 & 1) == 0) return {};
    return slots_[slot_of(pair, hash)].merge;
  }
  // Calls on_rule(left, right, merge) for every rule, in no order.
  template <typename OnRule>
  void for_each(OnRule on_rule) const {
    for (const Slot& slot : slots_) {
      if (slot.pair == kFree) continue;
      on_rule(static_cast<int32_t>(slot.pair >> 32), static_cast<int32_t>(slot.pair & UINT32_MAX),
              slot.merge);
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;  // no pair, since ids are below 2^31
  static constexpr int kFilterBits = 3;          // 8 bits of the filter per slot
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };

  static uint64_t pack(int32_t left, int32_t right) noexcept {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  static uint64_t hash_of(uint64_t pair) noexcept {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // Fibonacci hashing: the high bits mix both ids
    return pair * kGoldenRatio;
  }
  size_t slot_of(uint64_t pair, uint64_t hash) const noexcept {
    size_t slot = hash >> shift_;
    while (slots_[slot].pair != kFree && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  TableMemory<Slot> slots_;
  int shift_ = 0;
  // Most pairs have no rule. The filter has a bit for the hash of each pair that has one and is small enough
  // to stay in the cache.
  TableMemory<uint64_t> filter_;
};

}  // namespace allot::model
