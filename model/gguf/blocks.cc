#include "model/gguf/blocks.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "kernels/bfloat16.h"
#include "kernels/float16.h"

namespace allot::model {
namespace {

// Numbers in a block of the older types, and of those whose names end in K.
constexpr int kSmall = 32;
constexpr int kLarge = 256;

// The fields of a block, as they follow each other.
class Fields {
 public:
  explicit Fields(const std::byte* at) : at_(reinterpret_cast<const uint8_t*>(at)) {}

  const uint8_t* bytes(size_t count) { return std::exchange(at_, at_ + count); }
  float half() {
    const uint8_t* low_first = bytes(2);
    return kernels::float_from_float16(static_cast<uint16_t>(low_first[0] | low_first[1] << 8));
  }

 private:
  const uint8_t* at_;
};

void f32(const std::byte* block, float* out) {
  std::memcpy(out, block, sizeof(float));
}

void f16(const std::byte* block, float* out) {
  *out = Fields(block).half();
}

void bf16(const std::byte* block, float* out) {
  uint16_t bits = 0;
  std::memcpy(&bits, block, sizeof bits);
  *out = kernels::float_from_bfloat16(bits);
}

// Sixteen bytes hold 32 integers of four bits: the low halves are the first sixteen.
int small_nibble(const uint8_t* nibbles, int i) {
  return i < kSmall / 2 ? nibbles[i] & 0xF : nibbles[i - kSmall / 2] >> 4;
}

// The fifth bit of integer i, as 0 or 16.
int fifth_bit(const uint8_t* bits, int i) {
  return (bits[i / 8] >> (i % 8) & 1) << 4;
}

void q4_0(const std::byte* block, float* out) {
  Fields fields(block);
  const float scale = fields.half();
  const uint8_t* nibbles = fields.bytes(16);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(small_nibble(nibbles, i) - 8);
}

void q4_1(const std::byte* block, float* out) {
  Fields fields(block);
  const float scale = fields.half();
  const float minimum = fields.half();
  const uint8_t* nibbles = fields.bytes(16);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(small_nibble(nibbles, i)) + minimum;
}

void q5_0(const std::byte* block, float* out) {
  Fields fields(block);
  const float scale = fields.half();
  const uint8_t* fifth = fields.bytes(4);
  const uint8_t* nibbles = fields.bytes(16);
  for (int i = 0; i < kSmall; ++i) {
    out[i] = scale * static_cast<float>((small_nibble(nibbles, i) | fifth_bit(fifth, i)) - 16);
  }
}

void q5_1(const std::byte* block, float* out) {
  Fields fields(block);
  const float scale = fields.half();
  const float minimum = fields.half();
  const uint8_t* fifth = fields.bytes(4);
  const uint8_t* nibbles = fields.bytes(16);
  for (int i = 0; i < kSmall; ++i) {
    out[i] = scale * static_cast<float>(small_nibble(nibbles, i) | fifth_bit(fifth, i)) + minimum;
  }
}

void q8_0(const std::byte* block, float* out) {
  Fields fields(block);
  const float scale = fields.half();
  const uint8_t* integers = fields.bytes(kSmall);
  for (int i = 0; i < kSmall; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(integers[i]));
}

// Q4_K and Q5_K cut their block into eight parts of 32 numbers, each with a scale and a minimum.
struct PartScales {
  float scale[8];
  float minimum[8];
};

// Twelve bytes hold sixteen integers of six bits: scales and minima of parts 0 to 3 are the low six bits of
// bytes 0 to 7; those of parts 4 to 7 are the halves of bytes 8 to 11 under the top two bits of bytes 0 to 7.
PartScales part_scales(Fields* fields) {
  const float scale = fields->half();
  const float minimum = fields->half();
  const uint8_t* packed = fields->bytes(12);
  PartScales result;
  for (int part = 0; part < 8; ++part) {
    const int low = part % 4;
    const uint8_t* both = packed + 8 + low;
    const int six_bit_scale = part < 4 ? packed[low] & 0x3F : (*both & 0xF) | (packed[low] >> 6) << 4;
    const int six_bit_minimum = part < 4 ? packed[4 + low] & 0x3F : *both >> 4 | (packed[4 + low] >> 6) << 4;
    result.scale[part] = scale * static_cast<float>(six_bit_scale);
    result.minimum[part] = minimum * static_cast<float>(six_bit_minimum);
  }
  return result;
}

// 32 bytes hold two parts of 32 integers of four bits, the first in the low halves.
int large_nibble(const uint8_t* nibbles, int part, int i) {
  return nibbles[part / 2 * 32 + i] >> part % 2 * 4 & 0xF;
}

void q4_k(const std::byte* block, float* out) {
  Fields fields(block);
  const PartScales scales = part_scales(&fields);
  const uint8_t* nibbles = fields.bytes(kLarge / 2);
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i) {
      *out++ = scales.scale[part] * static_cast<float>(large_nibble(nibbles, part, i)) - scales.minimum[part];
    }
  }
}

void q5_k(const std::byte* block, float* out) {
  Fields fields(block);
  const PartScales scales = part_scales(&fields);
  const uint8_t* fifth = fields.bytes(kLarge / 8);  // bit `part` of byte i
  const uint8_t* nibbles = fields.bytes(kLarge / 2);
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i) {
      const int integer = large_nibble(nibbles, part, i) | (fifth[i] >> part & 1) << 4;
      *out++ = scales.scale[part] * static_cast<float>(integer) - scales.minimum[part];
    }
  }
}

// Two halves of 128 numbers. A half is four runs of 32: their low four bits are the low halves of 64 bytes,
// then the high halves; their upper two bits are two bits each of 32 bytes. Sixteen numbers share a scale.
void q6_k(const std::byte* block, float* out) {
  Fields fields(block);
  const uint8_t* low = fields.bytes(kLarge / 2);
  const uint8_t* high = fields.bytes(kLarge / 4);
  const uint8_t* scales = fields.bytes(kLarge / 16);
  const float scale = fields.half();
  for (int i = 0; i < kLarge; ++i) {
    const int half = i / 128, run = i / 32 % 4, at = i % 32;
    const int four_bits = low[half * 64 + run % 2 * 32 + at] >> run / 2 * 4 & 0xF;
    const int two_bits = high[half * 32 + at] >> run * 2 & 3;
    const float own_scale = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    out[i] = own_scale * static_cast<float>((four_bits | two_bits << 4) - 32);
  }
}

constexpr BlockLayout kLayouts[] = {
    {BlockType::kF32, "F32", 1, 4, f32},           {BlockType::kF16, "F16", 1, 2, f16},
    {BlockType::kBF16, "BF16", 1, 2, bf16},        {BlockType::kQ8_0, "Q8_0", kSmall, 34, q8_0},
    {BlockType::kQ4_0, "Q4_0", kSmall, 18, q4_0},  {BlockType::kQ4_1, "Q4_1", kSmall, 20, q4_1},
    {BlockType::kQ5_0, "Q5_0", kSmall, 22, q5_0},  {BlockType::kQ5_1, "Q5_1", kSmall, 24, q5_1},
    {BlockType::kQ4_K, "Q4_K", kLarge, 144, q4_k}, {BlockType::kQ5_K, "Q5_K", kLarge, 176, q5_k},
    {BlockType::kQ6_K, "Q6_K", kLarge, 210, q6_k},
};

// Types that the format has and that cannot be read.
constexpr std::pair<uint32_t, const char*> kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"}, {41, "Q1_0"},
};

}  // namespace

const BlockLayout* find_block_layout(uint32_t type) {
  const auto* found = std::ranges::find(kLayouts, static_cast<BlockType>(type), &BlockLayout::type);
  return found == std::end(kLayouts) ? nullptr : found;
}

std::string block_type_name(uint32_t type) {
  if (const BlockLayout* layout = find_block_layout(type)) return layout->name;
  const auto* found = std::ranges::find(kOtherTypes, type, &std::pair<uint32_t, const char*>::first);
  return found == std::end(kOtherTypes) ? "" : found->second;
}

std::string readable_block_types() {
  std::string list;
  for (const BlockLayout& layout : kLayouts) list.append(list.empty() ? "" : ", ").append(layout.name);
  return list;
}

void dequantize(const BlockLayout& layout, std::span<const std::byte> blocks, std::span<float> out) {
  assert(blocks.size() / layout.bytes * layout.elements == out.size());
  float* to = out.data();
  for (size_t at = 0; at < blocks.size(); at += layout.bytes, to += layout.elements) {
    layout.dequantize(blocks.data() + at, to);
  }
}

}  // namespace allot::model
