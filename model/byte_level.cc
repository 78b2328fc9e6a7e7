#include "model/byte_level.h"

#include <algorithm>
#include <array>

#include "model/utf8.h"

namespace allot::model {
namespace {

// Bytes that are printable in Latin-1 represent themselves; the others get the characters from U+0100 on.
constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr size_t kAlphabetEnd = 0x100 + 0x44;
constexpr int16_t kOutside = -1;

constexpr std::array<int16_t, kAlphabetEnd> kByteOfCodePoint = [] {
  std::array<int16_t, kAlphabetEnd> table{};
  table.fill(kOutside);
  size_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[stands_for_itself(byte) ? byte : next++] = static_cast<int16_t>(byte);
  }
  return table;
}();
static_assert(kByteOfCodePoint.back() == 0xAD,
              "68 bytes do not stand for themselves, the last of them is 0xAD");

}  // namespace

std::string byte_level_character(uint8_t byte) {
  const auto* const place = std::find(kByteOfCodePoint.begin(), kByteOfCodePoint.end(), byte);
  return utf8_encode(static_cast<char32_t>(place - kByteOfCodePoint.begin()));
}

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  while (!token.empty()) {
    const size_t length = utf8_bytes(token.front());
    const char32_t code_point = utf8_decode(token.substr(0, length));
    if (code_point >= kAlphabetEnd || kByteOfCodePoint[code_point] == kOutside) return std::nullopt;
    bytes += static_cast<char>(kByteOfCodePoint[code_point]);
    token.remove_prefix(length);
  }
  return bytes;
}

}  // namespace allot::model
