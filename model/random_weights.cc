#include "model/random_weights.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/bfloat16.h"

namespace allot::model {
namespace {

// Number of blocks made together, in loops that the compiler turns into vector instructions.
constexpr uint64_t kLanes = 32;
constexpr uint64_t kGroup = kLanes * kRandomBlock;

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

void store(float value, float* out) {
  *out = value;
}
void store(float value, uint16_t* out) {
  *out = kernels::bfloat16_from_float(value);
}

// The elements of `groups` times kLanes blocks from block `first` on: philox4x32_10 on kLanes
// counters at once.
template <class Element>
[[gnu::always_inline]] inline void make_groups(const RandomTensor& tensor, uint64_t first, uint64_t groups,
                                               Element* out) {
  static_assert(std::endian::native == std::endian::little, "a block's bytes are read as 16-bit numbers");
  for (uint64_t group = 0; group < groups; ++group, first += kLanes, out += kGroup) {
    uint32_t word[4][kLanes];
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      word[0][lane] = static_cast<uint32_t>(first + lane);
      word[1][lane] = static_cast<uint32_t>((first + lane) >> 32);
      word[2][lane] = static_cast<uint32_t>(tensor.name_hash);
      word[3][lane] = static_cast<uint32_t>(tensor.name_hash >> 32);
    }
    uint32_t key0 = static_cast<uint32_t>(tensor.seed);
    uint32_t key1 = static_cast<uint32_t>(tensor.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (uint64_t lane = 0; lane < kLanes; ++lane) {
        const uint64_t a = uint64_t{0xD2511F53u} * word[0][lane];
        const uint64_t b = uint64_t{0xCD9E8D57u} * word[2][lane];
        word[0][lane] = static_cast<uint32_t>(b >> 32) ^ word[1][lane] ^ key0;
        word[1][lane] = static_cast<uint32_t>(b);
        word[2][lane] = static_cast<uint32_t>(a >> 32) ^ word[3][lane] ^ key1;
        word[3][lane] = static_cast<uint32_t>(a);
      }
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    uint32_t blocks[kLanes][4];
    for (uint64_t lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < 4; ++i) blocks[lane][i] = word[i][lane];
    }
    uint16_t bits[kGroup];
    std::memcpy(bits, blocks, sizeof bits);
    for (uint64_t i = 0; i < kGroup; ++i)
      store(tensor.step * static_cast<float>(2 * int32_t{bits[i]} - 65535), out + i);
  }
}

// One compilation for each instruction set, chosen when first called. (Not target_clones: its choice runs
// before ThreadSanitizer is ready.)
template <class Element>
using MakeGroups = void (*)(const RandomTensor& tensor, uint64_t first, uint64_t groups, Element* out);

template <class Element>
[[gnu::target("arch=x86-64-v4")]] void make_groups_v4(const RandomTensor& tensor, uint64_t first,
                                                      uint64_t groups, Element* out) {
  make_groups(tensor, first, groups, out);
}
template <class Element>
[[gnu::target("arch=x86-64-v3")]] void make_groups_v3(const RandomTensor& tensor, uint64_t first,
                                                      uint64_t groups, Element* out) {
  make_groups(tensor, first, groups, out);
}
template <class Element>
void make_groups_anywhere(const RandomTensor& tensor, uint64_t first, uint64_t groups, Element* out) {
  make_groups(tensor, first, groups, out);
}

template <class Element>
MakeGroups<Element> fastest_make_groups() {
#if !defined( \
    __clang__)  // which builds what checks, not what is used, and knows these names from version 18 on
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return make_groups_v4<Element>;
  if (__builtin_cpu_supports("x86-64-v3")) return make_groups_v3<Element>;
#endif
  return make_groups_anywhere<Element>;
}

template <class Element>
void fill(const RandomTensor& tensor, uint64_t first, std::span<Element> out) {
  const auto one_by_one = [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = begin; i < end; ++i) store(random_element(tensor, first + i), &out[i]);
  };
  if (tensor.step == 0) {
    if (!out.empty()) store(tensor.constant, out.data());
    std::fill(out.begin(), out.end(), out.empty() ? Element{} : out.front());
    return;
  }
  const uint64_t head = std::min<uint64_t>(out.size(), (kRandomBlock - first % kRandomBlock) % kRandomBlock);
  const uint64_t groups = (out.size() - head) / kGroup;
  one_by_one(0, head);
  static const MakeGroups<Element> make = fastest_make_groups<Element>();
  make(tensor, (first + head) / kRandomBlock, groups, out.data() + head);
  one_by_one(head + groups * kGroup, out.size());
}

}  // namespace

RandomTensor random_tensor(uint64_t seed, std::string_view name, double standard_deviation) {
  // The variance of 2 u - 65535 with u uniform on 0 … 65535 is (65536^2 - 1) / 3.
  const double grid_deviation = std::sqrt((65536.0 * 65536.0 - 1) / 3);
  return {.seed = seed,
          .name_hash = fnv1a(name),
          .step = static_cast<float>(standard_deviation / grid_deviation),
          .constant = 0};
}

void fill_random(const RandomTensor& tensor, uint64_t first, std::span<float> out) {
  fill(tensor, first, out);
}

void fill_random_bfloat16(const RandomTensor& tensor, uint64_t first, std::span<uint16_t> out) {
  fill(tensor, first, out);
}

}  // namespace allot::model
