// Split keys on their way into a cache and out of it on the GPU: what the rotation stores in planes, and what
// is restored from them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/attention.h"
#include "kernels/rows_cuda.h"
#include "kernels/split_keys.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::kOld;
using testing::random_elements;
using testing::RowsCuda;

using Bytes = std::vector<unsigned char>;

constexpr int32_t kSplitPageSize = 32;
constexpr int64_t kSplitPageCount = 4;

int64_t high_bytes(int32_t kv_heads, int32_t head_dim) {
  return kSplitPageCount * kv_heads * kSplitPageSize / kSplitBlockKeys * split_block_bytes(head_dim);
}
int64_t low_bytes(int32_t kv_heads, int32_t head_dim) {
  return kSplitPageCount * kv_heads * kSplitPageSize * head_dim;
}

// NaN has many forms.
void expect_equal_floats(const void* a, const void* b, const std::string& where) {
  float x = 0, y = 0;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  EXPECT_TRUE(std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) || (std::isnan(x) && std::isnan(y)))
      << where << ": " << x << " and " << y;
}

// Tokens in slots of two pages, padding, and one each outside the pool and outside the tables.
struct RotarySplitCase {
  std::vector<int64_t> slots = {5, 40, -1, 41, 127, 6, 128, 64, 0};
  std::vector<int32_t> positions = {3, 0, 7, 9, 2, 10, 1, 8, 5};
};
constexpr int64_t kSplitTableRows = 10;

// Over 16-bit pages first; then the planes must be what the CPU makes of the rotated keys and queries.
TEST_F(RowsCuda, RotationStoresThePlanesOfTheKeysThatItWouldStore) {
  const RotarySplitCase of;
  const auto tokens = static_cast<int64_t>(of.slots.size());
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const bool with_norm : {false, true}) {
        SCOPED_TRACE(std::string(name(dtype)) + ", head_dim " + std::to_string(head_dim));
        constexpr int32_t kQueryHeads = 7, kKvHeads = 3;
        const int64_t stride = (kQueryHeads + 2 * kKvHeads) * head_dim + 16;
        Elements qkv = random_elements(dtype, tokens * stride, 31, 3);
        qkv.set(2 + 4 * stride + kQueryHeads * head_dim, INFINITY);  // of a key
        for (int64_t i = 2 * head_dim; i < 3 * head_dim; ++i)        // of a query: one over it is infinite
          qkv.set(i, std::ldexp(qkv.get(i), -125));
        const int64_t cache = kSplitPageCount * kKvHeads * kSplitPageSize * head_dim;
        std::vector<float> cos, sin;
        for (int64_t i = 0; i < kSplitTableRows * head_dim / 2; ++i) {
          cos.push_back(std::cos(0.3f * static_cast<float>(i)));
          sin.push_back(std::sin(0.3f * static_cast<float>(i)));
        }
        GuardedArray &plain_qkv = put(qkv), &split_qkv = put(qkv);
        GuardedArray &key_pages = put(Elements(dtype, cache, kOld)),
                     &plain_values = put(Elements(dtype, cache, kOld)),
                     &split_values = put(Elements(dtype, cache, kOld));
        RotaryParams p{.tokens = tokens,
                       .num_q_heads = kQueryHeads,
                       .num_kv_heads = kKvHeads,
                       .head_dim = head_dim,
                       .dtype = dtype,
                       .qkv = plain_qkv.data(),
                       .qkv_stride = stride,
                       .bias = put(random_elements(dtype, stride, 32)).data(),
                       .norm_epsilon = 1e-3f,
                       .cos = put(cos),
                       .sin = put(sin),
                       .table_rows = kSplitTableRows,
                       .positions = put(of.positions),
                       .key_pages = key_pages.data(),
                       .value_pages = plain_values.data(),
                       .num_pages = kSplitPageCount,
                       .page_size = kSplitPageSize,
                       .slots = put(of.slots)};
        if (with_norm) {
          p.q_norm = put(random_elements(dtype, head_dim, 33)).data();
          p.k_norm = put(random_elements(dtype, head_dim, 34)).data();
        }
        rotate_and_store_cuda(p, gpu_limits(), stream_);

        const Bytes old_high(static_cast<size_t>(high_bytes(kKvHeads, head_dim)), 0xAB),
            old_low(static_cast<size_t>(low_bytes(kKvHeads, head_dim)), 0x5A),
            old_planes(static_cast<size_t>(2 * tokens * kQueryHeads * head_dim), 0x5A);
        const std::vector<float> old_units(static_cast<size_t>(tokens * kQueryHeads), kOld);
        GuardedArray &high = put_bytes(old_high.data(), old_high.size(), 16),
                     &low = put_bytes(old_low.data(), old_low.size(), 16),
                     &planes = put_bytes(old_planes.data(), old_planes.size(), 16),
                     &units = put_bytes(old_units.data(), old_units.size() * sizeof(float), 4);
        p.qkv = split_qkv.data();
        p.value_pages = split_values.data();
        p.key_pages = nullptr;
        p.planes = {.high = high.data(),
                    .low = static_cast<int8_t*>(low.data()),
                    .query = static_cast<int8_t*>(planes.data()),
                    .query_units = static_cast<float*>(units.data())};
        rotate_and_store_cuda(p, gpu_limits(), stream_);
        EXPECT_EQ(split_qkv.download(stream_), plain_qkv.download(stream_));
        EXPECT_EQ(split_values.download(stream_), plain_values.download(stream_));

        // What the CPU splits: keys as they lie in the pages, slot by slot, and rotated queries.
        Bytes expected_high = old_high, expected_low = old_low, expected_planes = old_planes;
        std::vector<float> expected_units = old_units;
        const Elements stored = get(dtype, key_pages);
        Elements queries = get(dtype, plain_qkv);
        for (int64_t token = 0; token < tokens; ++token) {
          const int64_t slot = of.slots[token];
          if (slot < 0) continue;
          split_queries({.tokens = 1,
                         .num_q_heads = kQueryHeads,
                         .head_dim = head_dim,
                         .dtype = dtype,
                         .queries = static_cast<char*>(queries.data()) + token * stride * size_of(dtype),
                         .query_stride = stride,
                         .planes = reinterpret_cast<int8_t*>(expected_planes.data()) +
                                   2 * token * kQueryHeads * head_dim,
                         .units = expected_units.data() + token * kQueryHeads});
          if (slot >= kSplitPageCount * kSplitPageSize || of.positions[token] >= kSplitTableRows) continue;
          Elements key(dtype, kKvHeads * head_dim, 0);
          for (int32_t i = 0; i < kKvHeads * head_dim; ++i) {
            const int64_t row = (slot / kSplitPageSize * kKvHeads + i / head_dim) * kSplitPageSize;
            key.set(i, stored.get((row + slot % kSplitPageSize) * head_dim + i % head_dim));
          }
          store_split_keys({.tokens = 1,
                            .num_kv_heads = kKvHeads,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .keys = key.data(),
                            .key_stride = kKvHeads * head_dim,
                            .high = expected_high.data(),
                            .low = reinterpret_cast<int8_t*>(expected_low.data()),
                            .num_pages = kSplitPageCount,
                            .page_size = kSplitPageSize,
                            .slots = &slot});
        }
        Bytes found_high = high.download(stream_);
        for (size_t block = 0; block < found_high.size();
             block += static_cast<size_t>(split_block_bytes(head_dim))) {
          for (int32_t key = 0; key < kSplitBlockKeys; ++key) {
            const size_t at = block + static_cast<size_t>(split_unit_offset(head_dim, key));
            expect_equal_floats(&found_high[at], &expected_high[at], "unit at " + std::to_string(at));
            std::memcpy(&found_high[at], &expected_high[at], sizeof(float));
          }
        }
        EXPECT_TRUE(found_high == expected_high);
        EXPECT_TRUE(low.download(stream_) == expected_low);
        EXPECT_TRUE(planes.download(stream_) == expected_planes);
        const Bytes found_units = units.download(stream_);
        for (size_t i = 0; i < expected_units.size(); ++i)
          expect_equal_floats(&found_units[i * sizeof(float)], &expected_units[i],
                              "query " + std::to_string(i));
      }
    }
  }
}

// A restored element by the definition: the transposed rotation of the planes, times the unit.
double restored_element(const Bytes& high, const Bytes* low, int32_t head_dim, int64_t row, int32_t i) {
  const auto block = static_cast<size_t>(row / kSplitBlockKeys * split_block_bytes(head_dim));
  const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
  int64_t sum = 0;
  for (int32_t j = 0; j < head_dim; ++j) {
    const size_t at = block + static_cast<size_t>(split_high_offset(head_dim, key, j));
    const int64_t fixed =
        256 * static_cast<int8_t>(high[at]) +
        (low == nullptr ? 0 : static_cast<int8_t>((*low)[static_cast<size_t>(row * head_dim + j)]));
    sum += std::popcount(static_cast<uint32_t>(i & j)) % 2 == 0 ? fixed : -fixed;
  }
  float unit = 0;
  std::memcpy(&unit, &high[block + static_cast<size_t>(split_unit_offset(head_dim, key))], sizeof unit);
  const float element = static_cast<float>(sum) * (unit / (256.0f * static_cast<float>(head_dim)));
  return rotation_negates(i) ? -element : element;
}

TEST_F(RowsCuda, RestoringSplitKeysUndoesTheRotationForThoseThatAttendExactly) {
  const std::vector<int32_t> lengths = {33, 17, 64, 5, 32},
                             budgets = {kDenseBudget, 8, kDenseBudget, kDenseBudget, 0},
                             pages = {2, 0, 1, 1, 3, -1, 7, 0, 1, 2};  // 3's is outside the pool
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128}) {
      for (const bool with_low : {true, false}) {
        for (const bool chosen : {true, false}) {
          SCOPED_TRACE(std::string(name(dtype)) + ", head_dim " + std::to_string(head_dim));
          constexpr int32_t kKvHeads = 3;
          const int64_t vectors = kSplitPageCount * kKvHeads * kSplitPageSize;
          Elements keys = random_elements(dtype, vectors * head_dim, 41);
          for (int64_t v = 0; v < vectors; ++v) keys.set(v * head_dim + 5, 40.0f + static_cast<float>(v % 3));
          Bytes high(static_cast<size_t>(high_bytes(kKvHeads, head_dim))),
              low(static_cast<size_t>(low_bytes(kKvHeads, head_dim)));
          std::vector<int64_t> slots;  // vectors in the order of the cache's rows
          for (int64_t v = 0; v < vectors; ++v) slots.push_back(v);
          store_split_keys({.tokens = vectors,
                            .num_kv_heads = 1,
                            .head_dim = head_dim,
                            .dtype = dtype,
                            .keys = keys.data(),
                            .key_stride = head_dim,
                            .high = high.data(),
                            .low = reinterpret_cast<int8_t*>(low.data()),
                            .num_pages = vectors / kSplitBlockKeys,
                            .page_size = kSplitBlockKeys,
                            .slots = slots.data()});
          GuardedArray& key_pages = put(Elements(dtype, vectors * head_dim, kOld));
          restore_split_keys_cuda(
              {.sequences = 5,
               .num_kv_heads = kKvHeads,
               .head_dim = head_dim,
               .page_size = kSplitPageSize,
               .max_pages = 2,
               .num_pages = kSplitPageCount,
               .dtype = dtype,
               .high = put_bytes(high.data(), high.size(), 16).data(),
               .low = with_low ? static_cast<const int8_t*>(put_bytes(low.data(), low.size(), 16).data())
                               : nullptr,
               .page_table = put(pages),
               .lengths = put(lengths),
               .budgets = chosen ? put(budgets) : nullptr,
               .key_pages = key_pages.data()},
              gpu_limits(), stream_);
          const Elements restored = get(dtype, key_pages);
          std::vector<bool> wanted(static_cast<size_t>(vectors), false);
          for (size_t b = 0; b < lengths.size(); ++b) {
            if (chosen && budgets[b] != kDenseBudget) continue;
            for (int32_t key = 0; key < lengths[b]; ++key) {
              const int32_t page = pages[2 * b + static_cast<size_t>(key / kSplitPageSize)];
              if (page < 0 || page >= kSplitPageCount) continue;
              for (int32_t head = 0; head < kKvHeads; ++head)
                wanted[static_cast<size_t>((page * kKvHeads + head) * kSplitPageSize +
                                           key % kSplitPageSize)] = true;
            }
          }
          double largest = 0;
          Elements rounded(dtype, 1, 0);
          for (int64_t v = 0; v < vectors; ++v) {
            for (int32_t i = 0; i < head_dim; ++i) {
              const float found = restored.get(v * head_dim + i);
              if (!wanted[static_cast<size_t>(v)]) {
                ASSERT_EQ(found, kOld) << "row " << v;
                continue;
              }
              rounded.set(
                  0, static_cast<float>(restored_element(high, with_low ? &low : nullptr, head_dim, v, i)));
              ASSERT_EQ(found, rounded.get(0)) << "row " << v << " element " << i;
              const double key = keys.get(v * head_dim + i);
              largest = std::max(largest, std::abs(found - key) - testing::tolerance(dtype, key));
            }
          }
          // The largest rotated element of a key is about 80: steps of 80 / 32,512, or of 80 / 127, whose
          // roundings add up to a 40th of one in an element.
          EXPECT_LT(largest, with_low ? 0.002 : 0.2);
          EXPECT_EQ(largest > 0.02, !with_low) << "eight bits are seen";
        }
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels
