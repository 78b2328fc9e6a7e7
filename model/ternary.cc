#include "model/ternary.h"

#include <algorithm>
#include <cmath>

namespace allot::model {

size_t first_invalid(std::span<const std::byte> packed) {
  // Both bits of a pair are set in no number up to 2.
  const auto invalid = [](std::byte byte) { return ((byte & (byte >> 1)) & std::byte{0x55}) != std::byte{}; };
  // Without a branch for each byte, so that the compiler looks at many at once.
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < packed.size(); begin += kBlock) {
    const auto block = packed.subspan(begin, std::min(kBlock, packed.size() - begin));
    std::byte found{};
    for (const std::byte byte : block) found |= byte & (byte >> 1) & std::byte{0x55};
    if (found != std::byte{})
      return begin + static_cast<size_t>(std::ranges::find_if(block, invalid) - block.begin());
  }
  return packed.size();
}

void unpack(const PackedTernary& packed, int64_t first, std::span<float> out) {
  const auto quarter = static_cast<int64_t>(packed.bytes.size());
  const float values[] = {-packed.scale, 0, packed.scale, 0};
  auto at = first;
  for (auto to = out.begin(); to != out.end();) {
    const auto shift = static_cast<int>(2 * (at / quarter));
    const int64_t place = at % quarter;
    const auto run = std::min<int64_t>(quarter - place, out.end() - to);
    for (const std::byte byte : packed.bytes.subspan(static_cast<size_t>(place), static_cast<size_t>(run)))
      *to++ = values[std::to_integer<unsigned>(byte >> shift) & 3u];
    at += run;
  }
}

TernaryRounding::TernaryRounding(float mean) : inverse_(1 / std::max(mean, 1e-5f)) {}

void TernaryRounding::round(std::span<float> weights) const {
  for (float& weight : weights)
    weight = std::clamp(std::nearbyint(weight * inverse_), -1.0f, 1.0f) / inverse_;
}

}  // namespace allot::model
