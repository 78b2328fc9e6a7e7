// Memory of large lookup tables. Look-ups in random order in tables of megabytes spend much of their time
// translating addresses; 2 MiB pages make that rare. Measured in docs/internals/tokenizer.md.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

namespace allot::model {

// An allocator that asks for huge pages where they fit; where the system grants none, the memory is ordinary.
template <typename T>
struct TableAllocator {
  using value_type = T;

  TableAllocator() = default;
  template <typename Other>
  TableAllocator(const TableAllocator<Other>&) {}

  T* allocate(size_t count) {
    if (!is_large(count)) return static_cast<T*>(::operator new(count * sizeof(T), kOwnAlignment));
    void* memory = ::operator new(rounded_up(count), kPageAlignment);
    ::madvise(memory, rounded_up(count), MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }

  void deallocate(T* memory, size_t count) noexcept {
    ::operator delete(memory, is_large(count) ? kPageAlignment : kOwnAlignment);
  }

  friend bool operator==(const TableAllocator&, const TableAllocator&) { return true; }

 private:
  static constexpr size_t kPageBytes = size_t{2} << 20;
  static constexpr std::align_val_t kPageAlignment{kPageBytes};
  static constexpr std::align_val_t kOwnAlignment{alignof(T)};

  static constexpr bool is_large(size_t count) { return count * sizeof(T) >= kPageBytes; }
  static constexpr size_t rounded_up(size_t count) {
    return (count * sizeof(T) + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
};

template <typename T>
using TableMemory = std::vector<T, TableAllocator<T>>;

}  // namespace allot::model
