// Characters of several bytes that byte-pair encoding merges into one token before any of their bytes can
// join a neighbour: merging can begin with that token instead of the bytes and gives the same ids.
//
// A character qualifies beside given bytes when, with R the highest rank among the merges of its bytes alone,
//   1. its bytes alone end as one token,
//   2. every rule that joins a token ending in the byte before it with a symbol that its bytes pass through
//   at
//      their left end has a rank above R, and likewise at the right end, and
//   3. every rule that takes its token has a rank above R.
// Then, as long as the character is unfinished, the next merge of its own bytes comes before every merge
// across its borders (2), and the merges elsewhere in the meantime, of ranks up to R, are the same as when
// its token already exists (3). A space at the start of a piece and the character behind it are treated
// together in the same way, since tokenizers learn early to join spaces with first bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/merge_table.h"
#include "model/utf8.h"

namespace allot::model {

class CharacterTokens {
 public:
  // Knows no character.
  CharacterTokens() = default;
  // `tokens`: texts as bytes, and ids. `byte_ids`: ids of the single bytes.
  CharacterTokens(const MergeTable& merges, std::span<const std::pair<std::string_view, int32_t>> tokens,
                  const std::array<int32_t, 256>& byte_ids);

  struct Start {
    int32_t id = 0;
    size_t bytes = 0;  // 0: merging begins with the bytes
  };
  // The token that can replace the character of `piece` at `at`, or a space at the start of `piece` together
  // with the character behind it. `piece` may be any bytes.
  Start start_at(std::string_view piece, size_t at) const noexcept {
    const bool space = at == 0 && piece[0] == ' ';
    const size_t place = at + (space ? 1 : 0);
    const Entry* entry = entry_at(piece, place);
    if (entry == nullptr) return {};
    const Way& way = space ? entry->behind_space : entry->alone;
    const size_t end = place + utf8_bytes(piece[place]);
    const bool fits = way.id != kNone && (at == 0 || holds(way.before, piece[at - 1])) &&
                      (end == piece.size() || holds(way.behind, piece[end]));
    return fits ? Start{way.id, end - at} : Start{};
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr char32_t kEnd = 0x20000;  // vocabularies have hardly any characters above it
  static constexpr size_t kBlockBits = 6;    // of the code point: what the last byte holds
  static constexpr size_t kBlockSize = size_t{1} << kBlockBits;
  using Bytes = std::array<uint64_t, 4>;  // a bit for each byte

  struct Way {
    int32_t id = kNone;
    uint16_t before = 0;  // indices in sets_
    uint16_t behind = 0;
  };
  struct Entry {
    Way alone;
    Way behind_space;
  };
  class Builder;

  // Null where the bytes are no character, or one with which merging can never begin.
  const Entry* entry_at(std::string_view piece, size_t at) const noexcept;
  bool holds(uint16_t set, char byte) const noexcept {
    const auto value = static_cast<uint8_t>(byte);
    return (sets_[set][value / 64] >> value % 64 & 1) != 0;
  }

  std::array<uint16_t, kEnd / kBlockSize> block_of_{};  // block 0 has no entry
  std::vector<std::array<Entry, kBlockSize>> blocks_ = std::vector<std::array<Entry, kBlockSize>>(1);
  std::vector<Bytes> sets_;  // no two are equal
};

inline const CharacterTokens::Entry* CharacterTokens::entry_at(std::string_view piece,
                                                               size_t at) const noexcept {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[at + i]); };
  // 0x40 and above: not a continuation byte.
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) ^ 0x80); };
  const size_t left = piece.size() - at;
  if (left < 2 || byte(0) < 0xC2) return nullptr;
  char32_t code_point = 0;
  char32_t tails = tail(1);  // the bits that any tail has
  char32_t least = 0x80;
  if (byte(0) < 0xE0) {
    code_point = (byte(0) & char32_t{0x1F}) << 6 | tail(1);
  } else if (byte(0) < 0xF0) {
    if (left < 3) return nullptr;
    tails |= tail(2);
    code_point = (byte(0) & char32_t{0x0F}) << 12 | tail(1) << 6 | tail(2);
    least = 0x800;
  } else {
    if (left < 4) return nullptr;
    tails |= tail(2) | tail(3);
    code_point = (byte(0) & char32_t{0x0F}) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    least = 0x10000;
  }
  if (tails >= 0x40 || code_point < least || code_point >= kEnd) return nullptr;
  const uint16_t block = block_of_[code_point >> kBlockBits];
  if (block == 0) return nullptr;
  return &blocks_[block][code_point & (kBlockSize - 1)];
}

}  // namespace allot::model
