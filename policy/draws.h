// Random numbers by name: a stream is a function of (seed, number, purpose) and nothing else, so a proposal's
// draws do not depend on what was asked before it.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "base/philox.h"

namespace allot::policy {

// What the draws of a stream are for; streams of different purposes share no draw.
enum class DrawPurpose : uint32_t {
  kMultinomial = 0x706F6C00,  // number = proposal
  kPerturbation,              // number = pair
  kSimulation = 0x73696D00,   // and above: policy/simulation.cc, rehearsal.cc and surface.cc
};

// The purpose of a learner that is not listed above, computed from the learner's name (FNV-1a, 32 bits), so
// that no number has to be agreed on.
constexpr DrawPurpose draw_purpose(std::string_view learner) {
  uint32_t hash = 0x811C9DC5;
  for (const char letter : learner) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x01000193;
  return static_cast<DrawPurpose>(hash);
}

class DrawStream {
 public:
  DrawStream(uint64_t seed, uint64_t number, DrawPurpose purpose)
      : seed_(seed), number_(number), purpose_(static_cast<uint32_t>(purpose)) {}

  // The next 32 random bits.
  uint32_t bits() {
    if (draw_ % 4 == 0) {
      block_ = philox4x32_10(
          {{static_cast<uint32_t>(number_), static_cast<uint32_t>(number_ >> 32), purpose_, draw_ / 4}},
          static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32));
    }
    return block_.word[draw_++ % 4];
  }

  // The next number, uniform on [0, 1) in steps of 2^-53.
  double uniform() {
    const uint64_t high = bits();
    return static_cast<double>(((high << 32) | bits()) >> 11) * 0x1p-53;
  }

  // The next integer, uniform on [0, bound); bound >= 1. The bias is below bound / 2^32.
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((uint64_t{bits()} * bound) >> 32); }

 private:
  uint64_t seed_;
  uint64_t number_;
  uint32_t purpose_;
  uint32_t draw_ = 0;
  PhiloxBlock block_{};
};

// A standard normal number, by Box and Muller. Two draws.
inline double standard_normal(DrawStream& draws) {
  const double radius = std::sqrt(-2 * std::log1p(-draws.uniform()));
  return radius * std::cos(2 * std::numbers::pi * draws.uniform());
}

}  // namespace allot::policy
