#include "model/merge_table.h"

#include <algorithm>
#include <bit>

namespace allot::model {

MergeTable::MergeTable(size_t count) {
  const size_t size = std::bit_ceil(std::max<size_t>(64, count + count / 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  filter_.resize((size << kFilterBits) / 64);
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pack(left, right);
  const uint64_t hash = hash_of(pair);
  slots_[slot_of(pair, hash)] = {pair, merge};
  const uint64_t bit = hash >> (shift_ - kFilterBits);
  filter_[bit / 64] |= uint64_t{1} << bit % 64;
}

}  // namespace allot::model
