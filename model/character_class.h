// The classes of characters that the patterns of byte-level tokenizers distinguish: letters, numbers, line
// breaks, other whitespace and the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace allot::model {

// \p{L}, \p{N}, [\r\n], the rest of \s, and [^\s\p{L}\p{N}].
enum class CharacterClass : uint8_t { kOther, kLetter, kNumber, kNewline, kSpace };

// The class of every code point, in the Unicode version of Regex.
class CharacterClasses {
 public:
  // Made at the first call; later calls return the same object. Safe from many threads.
  static const CharacterClasses& get();

  CharacterClass of(char32_t c) const noexcept {
    return blocks_[block_of_[c >> kBlockBits]][c & (kBlockSize - 1)];
  }

 private:
  static constexpr int kBlockBits = 8;
  static constexpr size_t kBlockSize = size_t{1} << kBlockBits;
  using Block = std::array<CharacterClass, kBlockSize>;

  CharacterClasses();

  std::array<uint16_t, 0x110000 / kBlockSize> block_of_{};  // code points of one block share the bits above
  std::vector<Block> blocks_;                               // no two are equal
};

}  // namespace allot::model
