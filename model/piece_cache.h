// Remembers the ids of pieces that are not tokens themselves: text repeats its rare words, and merging
// them again takes microseconds. Later pieces replace earlier ones, so that the size is fixed. For one
// thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "model/table_memory.h"

namespace allot::model {

class PieceCache {
 public:
  // Longer pieces and those of more ids are not kept.
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;

  PieceCache() : entries_(kEntries) {}

  // Empty when the piece is not known. Valid until the next call of insert.
  std::span<const int32_t> find(std::string_view piece) const noexcept {
    const Entry& entry = entries_[place_of(piece)];
    if (std::string_view(entry.text.data(), entry.bytes) != piece) return {};
    return std::span(entry.ids).first(entry.count);
  }

  void insert(std::string_view piece, std::span<const int32_t> ids) noexcept {
    if (piece.size() > kMaxBytes || ids.size() > kMaxIds) return;
    Entry& entry = entries_[place_of(piece)];
    entry.bytes = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(piece.begin(), piece.end(), entry.text.begin());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 16;  // 4 MiB

  struct alignas(64) Entry {
    uint8_t bytes = 0;
    uint8_t count = 0;
    std::array<char, kMaxBytes> text{};
    std::array<int32_t, kMaxIds> ids{};
  };
  static_assert(sizeof(Entry) == 64, "an entry fills a cache line");

  static size_t place_of(std::string_view piece) noexcept {
    return std::hash<std::string_view>{}(piece) % kEntries;
  }

  TableMemory<Entry> entries_;
};

}  // namespace allot::model
