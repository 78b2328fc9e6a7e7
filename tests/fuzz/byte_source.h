// Reads a fuzzer's input as a sequence of choices. At its end every choice is zero, so any prefix of an input
// is an input too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace allot::fuzz {

class ByteSource {
 public:
  explicit ByteSource(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }

  // 0 to limit - 1, from one byte.
  int below(int limit) { return byte() % limit; }

  uint16_t word() {
    const uint16_t low = byte();
    return static_cast<uint16_t>(low | byte() << 8);
  }

  // The next `count` bytes, or as many as are left.
  std::string_view text(size_t count) {
    count = std::min(count, bytes_.size());
    const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()), count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace allot::fuzz
