// What the rotation stores in planes and what is restored from them, by the kernels compiled for the host
// (emulation.h), against the CPU's functions.
#include "emulation.h"
// Kernels of the same names, compiled by nvcc, may be linked with this.
#define cuda emulated_cuda
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/rows/restore_keys.cuh"
#include "kernels/cuda/rows/rotary.cuh"
#include "kernels/split_keys.h"
#include "tests/kernels/launch.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::random_elements;

constexpr int32_t kCachePage = 32;
constexpr int64_t kCachePages = 4;

// A cache of split keys; its bytes are poison until they are written.
struct SplitCache {
  SplitCache(int32_t kv_heads, int32_t head_dim)
      : high(static_cast<size_t>(kCachePages * kv_heads * kCachePage / kSplitBlockKeys *
                                 split_block_bytes(head_dim)),
             0xAB),
        low(static_cast<size_t>(kCachePages * kv_heads * kCachePage * head_dim), 0x5A) {}
  std::vector<unsigned char> high;
  std::vector<int8_t> low;
  friend bool operator==(const SplitCache&, const SplitCache&) = default;
};

// Runs a kernel of one argument pack, blocks one after the other.
template <class Body>
void run_blocks(unsigned x, unsigned y, unsigned threads, const Body& body) {
  emulation::Blocks::grid = {x, y, 1};
  for (unsigned j = 0; j < y; ++j) {
    for (unsigned i = 0; i < x; ++i) emulation::Blocks::run(1, {i, j, 0}, static_cast<int>(threads), 0, body);
  }
}

template <class T, int kHeadDim>
void rotate(const RotaryParams& p, bool splits) {
  constexpr int kRotationLanes = kHeadDim / 16;
  const auto heads = static_cast<unsigned>(p.num_q_heads + 2 * p.num_kv_heads);
  const unsigned heads_of_block = cuda::kRotaryThreads / kRotationLanes;
  run_blocks(static_cast<unsigned>(p.tokens), (heads + heads_of_block - 1) / heads_of_block,
             cuda::kRotaryThreads, [&] {
               if (splits) {
                 cuda::rotate_and_store<T, 8, kHeadDim>(p, kRotationLanes);
               } else {
                 cuda::rotate_and_store<T, 8, 0>(p, kRotationLanes);
               }
             });
}

template <class T, int kHeadDim>
void expect_planes_of_rotated_keys(DType dtype) {
  SCOPED_TRACE(std::string(name(dtype)) + ", head_dim " + std::to_string(kHeadDim));
  constexpr int32_t kQueryHeads = 5, kKvHeads = 2, kTableRows = 10;
  const std::vector<int64_t> slots = {5, 40, -1, 41, 127, 128, 64};
  const std::vector<int32_t> positions = {3, 0, 7, 9, 10, 1, 8};
  const auto tokens = static_cast<int64_t>(slots.size());
  const int64_t stride = (kQueryHeads + 2 * kKvHeads) * kHeadDim;
  Elements qkv = random_elements(dtype, tokens * stride, 31);
  for (int64_t i = 2 * kHeadDim; i < 3 * kHeadDim; ++i)  // of a query: so small that one over it is infinite
    qkv.set(i, std::ldexp(qkv.get(i), -125));
  Elements plain_qkv = qkv, split_qkv = qkv, norm = random_elements(dtype, kHeadDim, 33);
  const int64_t cache = kCachePages * kKvHeads * kCachePage * kHeadDim;
  Elements keys(dtype, cache, 77), plain_values(dtype, cache, 77), split_values(dtype, cache, 77);
  std::vector<float> cos, sin;
  for (int32_t i = 0; i < kTableRows * kHeadDim / 2; ++i) {
    cos.push_back(std::cos(0.3f * static_cast<float>(i)));
    sin.push_back(std::sin(0.3f * static_cast<float>(i)));
  }
  RotaryParams p{.tokens = tokens,
                 .num_q_heads = kQueryHeads,
                 .num_kv_heads = kKvHeads,
                 .head_dim = kHeadDim,
                 .dtype = dtype,
                 .qkv = plain_qkv.data(),
                 .qkv_stride = stride,
                 .k_norm = norm.data(),
                 .norm_epsilon = 1e-3f,
                 .cos = cos.data(),
                 .sin = sin.data(),
                 .table_rows = kTableRows,
                 .positions = positions.data(),
                 .key_pages = keys.data(),
                 .value_pages = plain_values.data(),
                 .num_pages = kCachePages,
                 .page_size = kCachePage,
                 .slots = slots.data()};
  rotate<T, kHeadDim>(p, false);
  SplitCache found(kKvHeads, kHeadDim), expected(kKvHeads, kHeadDim);
  std::vector<int8_t> planes(static_cast<size_t>(2 * tokens * kQueryHeads * kHeadDim), 0x5A),
      expected_planes = planes;
  std::vector<float> units(static_cast<size_t>(tokens * kQueryHeads), 77), expected_units = units;
  p.qkv = split_qkv.data();
  p.key_pages = nullptr;
  p.value_pages = split_values.data();
  p.planes = {.high = found.high.data(),
              .low = found.low.data(),
              .query = planes.data(),
              .query_units = units.data()};
  rotate<T, kHeadDim>(p, true);
  EXPECT_EQ(split_qkv.bytes(), plain_qkv.bytes());
  EXPECT_EQ(split_values.bytes(), plain_values.bytes());
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t slot = slots[static_cast<size_t>(token)];
    if (slot < 0) continue;
    split_queries({.tokens = 1,
                   .num_q_heads = kQueryHeads,
                   .head_dim = kHeadDim,
                   .dtype = dtype,
                   .queries = static_cast<char*>(plain_qkv.data()) + token * stride * size_of(dtype),
                   .query_stride = stride,
                   .planes = expected_planes.data() + 2 * token * kQueryHeads * kHeadDim,
                   .units = expected_units.data() + token * kQueryHeads});
    if (slot >= kCachePages * kCachePage || positions[static_cast<size_t>(token)] >= kTableRows) continue;
    Elements key(dtype, kKvHeads * kHeadDim, 0);
    for (int32_t i = 0; i < kKvHeads * kHeadDim; ++i) {
      const int64_t row = (slot / kCachePage * kKvHeads + i / kHeadDim) * kCachePage + slot % kCachePage;
      key.set(i, keys.get(row * kHeadDim + i % kHeadDim));
    }
    store_split_keys({.tokens = 1,
                      .num_kv_heads = kKvHeads,
                      .head_dim = kHeadDim,
                      .dtype = dtype,
                      .keys = key.data(),
                      .key_stride = kKvHeads * kHeadDim,
                      .high = expected.high.data(),
                      .low = expected.low.data(),
                      .num_pages = kCachePages,
                      .page_size = kCachePage,
                      .slots = &slot});
  }
  EXPECT_TRUE(found == expected);
  EXPECT_EQ(planes, expected_planes);
  for (size_t i = 0; i < units.size(); ++i) {
    EXPECT_TRUE(units[i] == expected_units[i] || (std::isnan(units[i]) && std::isnan(expected_units[i])))
        << "query " << i << ": " << units[i] << " and " << expected_units[i];
  }
}

TEST(EmulatedSplitRows, RotationStoresThePlanesOfTheKeysThatItWouldStore) {
  expect_planes_of_rotated_keys<__nv_bfloat16, 64>(DType::kBFloat16);
  expect_planes_of_rotated_keys<__nv_bfloat16, 128>(DType::kBFloat16);
  expect_planes_of_rotated_keys<__half, 64>(DType::kFloat16);
}

template <class T, int kHeadDim>
void expect_restored_keys(DType dtype, bool with_low) {
  SCOPED_TRACE(std::string(name(dtype)) + ", head_dim " + std::to_string(kHeadDim));
  constexpr int32_t kKvHeads = 3;
  const int64_t vectors = kCachePages * kKvHeads * kCachePage;
  Elements keys = random_elements(dtype, vectors * kHeadDim, 41);
  for (int64_t v = 0; v < vectors; ++v) keys.set(v * kHeadDim + 5, 40.0f + static_cast<float>(v % 3));
  SplitCache cache(kKvHeads, kHeadDim);
  std::vector<int64_t> slots;
  for (int64_t v = 0; v < vectors; ++v) slots.push_back(v);
  store_split_keys({.tokens = vectors,
                    .num_kv_heads = 1,
                    .head_dim = kHeadDim,
                    .dtype = dtype,
                    .keys = keys.data(),
                    .key_stride = kHeadDim,
                    .high = cache.high.data(),
                    .low = cache.low.data(),
                    .num_pages = vectors / kSplitBlockKeys,
                    .page_size = kSplitBlockKeys,
                    .slots = slots.data()});
  const std::vector<int32_t> lengths = {33, 17, 5}, budgets = {kDenseBudget, 8, kDenseBudget},
                             pages = {2, 0, 1, 1, -1, 7};
  Elements restored(dtype, vectors * kHeadDim, 77);
  const RestoreSplitKeysParams p{.sequences = 3,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = kHeadDim,
                                 .page_size = kCachePage,
                                 .max_pages = 2,
                                 .num_pages = kCachePages,
                                 .dtype = dtype,
                                 .high = cache.high.data(),
                                 .low = with_low ? cache.low.data() : nullptr,
                                 .page_table = pages.data(),
                                 .lengths = lengths.data(),
                                 .budgets = budgets.data(),
                                 .key_pages = restored.data()};
  run_blocks(2, 3, cuda::kRestoreThreads, [&] { cuda::restore_keys<T, kHeadDim>(p); });
  double largest = 0;
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t page = v / (kKvHeads * kCachePage), token = v % kCachePage;
    const bool wanted = page == 2 || (page == 0 && token == 0);  // of the first sequence
    for (int32_t i = 0; i < kHeadDim; ++i) {
      const double found = restored.get(v * kHeadDim + i), key = keys.get(v * kHeadDim + i);
      if (!wanted) {
        ASSERT_EQ(found, 77) << "row " << v;
      } else {
        const double unit = dtype == DType::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
        largest = std::max(largest, std::abs(found - key) - unit * std::abs(key));
      }
    }
  }
  // Largest rotated elements are about 80: see split_rows_cuda_test.cc.
  EXPECT_LT(largest, with_low ? 0.002 : 0.2);
  EXPECT_EQ(largest > 0.02, !with_low) << "eight bits are seen";
}

TEST(EmulatedSplitRows, RestoringUndoesTheRotationForThoseThatAttendExactly) {
  for (const bool with_low : {true, false}) {
    expect_restored_keys<__nv_bfloat16, 64>(DType::kBFloat16, with_low);
    expect_restored_keys<__nv_bfloat16, 128>(DType::kBFloat16, with_low);
    expect_restored_keys<__half, 128>(DType::kFloat16, with_low);
  }
}

}  // namespace
}  // namespace allot::kernels
