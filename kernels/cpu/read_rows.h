// Counts the distinct value rows that the heads of a group read (AttentionParams::rows_read). Does nothing in
// launches that do not ask for it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

class ReadRows {
 public:
  // `sets` sets of keys [0, keys), one for every query and KV head of an item.
  ReadRows(const AttentionParams& p, int64_t sequence, int64_t sets, int32_t keys, Workspace& work)
      : total_(wanted(p, sequence) ? p.rows_read + sequence : nullptr), keys_(keys) {
    if (total_ == nullptr) return;
    marks_ = work.marks.reserve(sets * keys);
    std::fill(marks_, marks_ + sets * keys, uint8_t{0});
  }

  bool counts() const { return total_ != nullptr; }
  void mark(int64_t set, int32_t key) {
    if (total_ == nullptr) return;
    uint8_t& marked = marks_[set * keys_ + key];
    count_ += marked == 0 ? 1 : 0;
    marked = 1;
  }
  void mark_all(int64_t set, int32_t keys) {
    if (total_ == nullptr) return;
    for (int32_t key = 0; key < keys; ++key) mark(set, key);
  }
  // Keys of a set that nothing else marks.
  void add_all(int64_t keys) { count_ += keys; }

  // Adds the count to that of the sequence, whose items may end on several threads at once.
  void finish() {
    if (total_ != nullptr) std::atomic_ref(*total_).fetch_add(count_, std::memory_order_relaxed);
  }

 private:
  static bool wanted(const AttentionParams& p, int64_t sequence) {
    const bool dense = p.budgets != nullptr && p.budgets[sequence] == kDenseBudget;
    return p.rows_read != nullptr && !dense;
  }

  int64_t* total_;
  int32_t keys_;
  uint8_t* marks_ = nullptr;  // [sets, keys]
  int64_t count_ = 0;
};

}  // namespace allot::kernels::cpu
