// Maps the text of a token to its id. Made for one look-up per piece: open addressing, with short texts
// inside the slots.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#include "model/table_memory.h"
#include "model/vocabulary.h"

namespace allot::model {

class TokenTable {
 public:
  // Room for `count` texts.
  explicit TokenTable(size_t count);

  // `text` must not be in the table yet.
  void insert(std::string_view text, int32_t id);

  std::optional<int32_t> find(std::string_view text) const noexcept {
    if (text.size() > kShortBytes) return find_long(text);
    const Slot& slot = slots_[place_of(key_of(text))];
    return slot.key.bytes == kFree ? std::nullopt : std::optional(slot.id);
  }

  // Prefetches the memory that find(text) will read, so that it need not wait.
  void prefetch(std::string_view text) const noexcept {
    if (text.size() <= kShortBytes) __builtin_prefetch(&slots_[home_of(key_of(text))]);
  }

 private:
  static constexpr size_t kShortBytes = 16;
  static constexpr uint32_t kFree = UINT32_MAX;

  // The key of a short text: its first and last eight bytes, which may overlap, and its length identify it.
  struct Key {
    uint64_t head = 0;
    uint64_t tail = 0;
    uint32_t bytes = kFree;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct alignas(32) Slot {  // two to a cache line
    Key key;
    int32_t id = 0;
  };

  template <typename Word>
  static uint64_t load(const char* bytes) noexcept {
    Word word;
    std::memcpy(&word, bytes, sizeof word);
    return word;
  }

  template <typename Word>
  static Key ends_of(std::string_view text) noexcept {
    return {load<Word>(text.data()), load<Word>(text.data() + text.size() - sizeof(Word)),
            static_cast<uint32_t>(text.size())};
  }

  static Key key_of(std::string_view text) noexcept {
    if (text.size() >= 8) return ends_of<uint64_t>(text);
    if (text.size() >= 4) return ends_of<uint32_t>(text);
    if (text.size() >= 2) return ends_of<uint16_t>(text);
    return {text.empty() ? 0 : load<uint8_t>(text.data()), 0, static_cast<uint32_t>(text.size())};
  }

  // The slot where the search for the key begins.
  size_t home_of(const Key& key) const noexcept {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
    constexpr uint64_t kOdd = 0xC2B2AE3D27D4EB4F;
    uint64_t mixed = (key.head ^ std::rotl(key.tail * kOdd, 32)) * kGoldenRatio;
    mixed = (mixed ^ mixed >> 32 ^ key.bytes) * kGoldenRatio;
    return mixed >> shift_;
  }

  // The slot of the key, or the free slot where the key would be put.
  size_t place_of(const Key& key) const noexcept {
    size_t place = home_of(key);
    while (slots_[place].key.bytes != kFree && slots_[place].key != key)
      place = (place + 1) & (slots_.size() - 1);
    return place;
  }

  std::optional<int32_t> find_long(std::string_view text) const noexcept;

  TableMemory<Slot> slots_;
  int shift_ = 0;
  TokenMap long_;
};

}  // namespace allot::model
