// The tensor types of GGUF files and the numbers that their bytes stand for. A tensor is rows of blocks; a
// block holds a few numbers, mostly as small integers with a common scale. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace allot::model {

// The numbers are those of the format.
enum class BlockType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// A type's row in the table of types that can be read.
struct BlockLayout {
  BlockType type;
  const char* name;       // "Q4_K"
  uint64_t elements = 1;  // numbers in a block
  uint64_t bytes = 1;     // of a block
  // Writes the numbers of the block at the first pointer, which need not be aligned, to the second.
  void (*dequantize)(const std::byte*, float*);
};

// Null for a type that cannot be read, or that the format does not have.
const BlockLayout* find_block_layout(uint32_t type);
// The format's name of a type, also of those that cannot be read; empty for an unknown number.
std::string block_type_name(uint32_t type);
// "F32, F16, …", for messages.
std::string readable_block_types();

// The numbers of whole blocks in float32, with the bits that the Python package `gguf` gives
// (gguf.quants.dequantize): products of a scale with integers of the file are exact, and what follows is one
// operation that rounds. `out` has layout.elements numbers for each layout.bytes of `blocks`.
void dequantize(const BlockLayout& layout, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace allot::model
