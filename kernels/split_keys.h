// Keys in two planes of 8 bits, so that a score pass reads half the bytes. A key is rotated (signs, then a
// Hadamard matrix), which spreads a few large channels over all of them, and rounded to 16-bit fixed point
// with a unit of its own:
//   rotated key ~ unit * (high + low / 256), high and low in [-128, 127].
// Its error is at most 2^-16 of the key's largest rotated element, less than that of bfloat16 for all
// elements above 1/128 of the largest. Queries are rotated and split in the same way, so that q . k stays
// what it was.
//
// Sampled attention draws by the high plane alone and corrects the rows drawn by the low plane
// (kernels/attention.h). The functions are arithmetic that every processor and GPU does alike, to the bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "kernels/estimator.h"

namespace allot::kernels {

// Tokens whose high planes and units lie together, a block: neighbours in a page.
inline constexpr int32_t kSplitBlockKeys = 16;

// A block: the high planes [kSplitBlockKeys, head_dim] int8, then the units [kSplitBlockKeys] float32. Within
// a key, chunks of 16 elements are swapped, each key's otherwise, so that the same chunk of eight keys is
// read from all banks of a GPU's shared memory.
ALLOT_HOST_DEVICE constexpr int64_t split_block_content(int32_t head_dim) {
  return int64_t{kSplitBlockKeys} * head_dim + int64_t{kSplitBlockKeys} * 4;
}
// From a block to the next: every block begins at a line of 128 bytes where the first does, so that nobody
// who reads one reads a line of its neighbour.
ALLOT_HOST_DEVICE constexpr int64_t split_block_bytes(int32_t head_dim) {
  return (split_block_content(head_dim) + 127) / 128 * 128;
}
inline constexpr int32_t kSplitChunk = 16;
// Where in a block an element of the high plane of its key number `key` lies, those of a chunk together.
ALLOT_HOST_DEVICE constexpr int64_t split_high_offset(int32_t head_dim, int32_t key, int32_t element) {
  constexpr int32_t kLine = 128;  // bytes of all banks
  const int32_t of_eight = key % 8;
  // Keys beyond a line's worth of them begin at the same banks. Of long ones, neighbours differ by four
  // chunks, since a load of 16 bytes a lane reads four chunks of two keys at once.
  const int32_t swap = head_dim < kLine ? of_eight / (kLine / head_dim) : of_eight % 2 * 4 + of_eight / 2;
  return int64_t{key} * head_dim + (element / kSplitChunk ^ swap) * kSplitChunk + element % kSplitChunk;
}
// And where its unit does.
ALLOT_HOST_DEVICE constexpr int64_t split_unit_offset(int32_t head_dim, int32_t key) {
  return int64_t{kSplitBlockKeys} * head_dim + int64_t{key} * 4;
}

// Keys and queries of a launch, split; `high` is null where keys are in 16-bit pages.
struct SplitKeys {
  // [num_pages, num_kv_heads, page_size / kSplitBlockKeys] blocks, aligned to 16 bytes
  const void* high = nullptr;
  // [num_pages, num_kv_heads, page_size, head_dim], aligned to 16 bytes; null: scores are those of the high
  // plane and nothing is corrected
  const int8_t* low = nullptr;
  // [num_queries, num_q_heads, 2, head_dim] high plane and low plane of each query head, aligned to 16 bytes
  const int8_t* query = nullptr;
  const float* query_units = nullptr;  // [num_queries, num_q_heads]
};

// The signs of the rotation: element i is negated where bit i % 64 of word i / 64 is set. The first 256 bits
// of the fraction of pi.
ALLOT_HOST_DEVICE constexpr bool rotation_negates(int32_t i) {
  constexpr uint64_t kBits[4] = {0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0,
                                 0x082EFA98EC4E6C89};
  return (kBits[i / 64 % 4] >> (i % 64) & 1) != 0;
}

// Largest magnitude of a fixed-point element: high is then 127 and low 0.
inline constexpr int32_t kSplitMost = 127 * 256;

struct SplitUnits {
  float unit;     // of the high plane; NaN where an element is not finite
  float inverse;  // elements times this are fixed-point numbers; finite
};
// Of a vector whose largest magnitude is `largest`. A vector of zeros has unit 1. Where there is no unit, and
// where elements are so small that one over it is too large, all fixed-point numbers are 0.
ALLOT_HOST_DEVICE inline SplitUnits split_units(float largest) {
  constexpr float kLargest = 3.0e38f;
  if (largest == 0) return {1, 0};
  if (!(largest <= kLargest)) return {NAN, 0};
  const float inverse = static_cast<float>(kSplitMost) / largest;
  return {largest / 127.0f, inverse <= kLargest ? inverse : 0};
}

struct SplitElement {
  int8_t high;
  int8_t low;
};
// A rotated element; 0 where the vector has no unit.
ALLOT_HOST_DEVICE inline SplitElement split_element(float x, const SplitUnits& units) {
  const int32_t fixed = units.unit != units.unit ? 0 : static_cast<int32_t>(rintf(x * units.inverse));
  const int32_t high = (fixed + 128) >> 8;
  return {static_cast<int8_t>(high), static_cast<int8_t>(fixed - 256 * high)};
}

// Largest of magnitudes; NaN where one is, which fmaxf would drop.
ALLOT_HOST_DEVICE inline float larger_magnitude(float largest, float x) {
  const float magnitude = fabsf(x);
  return magnitude > largest || magnitude != magnitude ? magnitude : largest;
}

// Whether vectors of `head_dim` elements can be rotated: a power of two from 8 to 256.
ALLOT_HOST_DEVICE constexpr bool can_split(int32_t head_dim) {
  return head_dim >= 8 && head_dim <= 256 && (head_dim & (head_dim - 1)) == 0;
}

// Splits keys on their way into the cache: those of token t and KV head h go to the place of slots[t].
struct StoreSplitKeysParams {
  int64_t tokens = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;           // can_split()
  DType dtype = DType::kFloat32;  // of keys
  const void* keys = nullptr;  // [tokens, num_kv_heads, head_dim], the heads of a token one after the other
  int64_t key_stride = 0;      // elements between tokens; >= num_kv_heads * head_dim
  void* high = nullptr;        // as SplitKeys::high
  int8_t* low = nullptr;       // as SplitKeys::low; null = not stored
  int64_t num_pages = 0;
  int32_t page_size = 0;           // a multiple of kSplitBlockKeys
  const int64_t* slots = nullptr;  // [tokens] page * page_size + offset in the page; negative: not stored
};
// Throws InvalidArgument as in rows.h.
void store_split_keys(const StoreSplitKeysParams& params);

// Splits queries. Their units take in the factor of the rotation, 1 / head_dim.
struct SplitQueriesParams {
  int64_t tokens = 0;
  int32_t num_q_heads = 0;
  int32_t head_dim = 0;           // can_split()
  DType dtype = DType::kFloat32;  // of queries
  const void* queries = nullptr;  // [tokens, num_q_heads, head_dim], the heads of a token one after the other
  int64_t query_stride = 0;       // elements between tokens; >= num_q_heads * head_dim
  int8_t* planes = nullptr;       // as SplitKeys::query
  float* units = nullptr;         // as SplitKeys::query_units
};
void split_queries(const SplitQueriesParams& params);

}  // namespace allot::kernels
