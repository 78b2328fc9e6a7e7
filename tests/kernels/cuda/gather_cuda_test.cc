// Gathering rows and the KV cache on a GPU, for indices and pages that exist and for ones that do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/rows_cuda.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::kOld;
using testing::random_elements;
using testing::RowsCuda;

TEST_F(RowsCuda, GatheringCopiesRowsFillsPaddingWithZerosAndWhatDoesNotExistWithNan) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 8, 33, 896, 5000}) {
      const Elements table = random_elements(dtype, 7 * width, 13);
      const std::vector<int32_t> ids = {6, 0, -1, 3, 3, 7};
      const int32_t* const device_ids = put(ids);
      GuardedArray& device_table = put(table);
      GuardedArray& embeddings = put(Elements(dtype, 6 * width, kOld));
      GuardedArray& rows = put(Elements(dtype, 6 * width, kOld));
      gather_embeddings_cuda({.tokens = 6,
                              .width = width,
                              .vocab_size = 7,
                              .dtype = dtype,
                              .table = device_table.data(),
                              .ids = device_ids,
                              .out = embeddings.data()},
                             gpu_limits(), stream_);
      gather_rows_cuda({.rows = 6,
                        .width = width,
                        .source_rows = 7,
                        .dtype = dtype,
                        .source = device_table.data(),
                        .indices = device_ids,
                        .out = rows.data()},
                       gpu_limits(), stream_);
      const Elements result = get(dtype, embeddings);
      for (int64_t token = 0; token < 6; ++token) {
        for (int64_t i = 0; i < width; ++i) {
          const float x = result.get(token * width + i);
          if (ids[token] == 7) {
            ASSERT_TRUE(std::isnan(x)) << x;
          } else {
            ASSERT_EQ(x, ids[token] < 0 ? 0 : table.get(ids[token] * width + i)) << "token " << token;
          }
        }
      }
      ASSERT_EQ(rows.download(stream_), embeddings.download(stream_));
    }
  });
}

struct CacheShape {
  int32_t page_size, num_kv_heads, head_dim;
};

// Sequences of odd lengths in pages of a shuffled order; pages of nobody and slots beyond a length hold
// other numbers.
struct CacheCase {
  CacheShape shape;
  std::vector<int32_t> lengths, cum_keys = {0}, page_table;
  int32_t max_pages, num_pages;

  explicit CacheCase(const CacheShape& of, std::vector<int32_t> of_lengths)
      : shape(of), lengths(std::move(of_lengths)) {
    int32_t used = 0, longest = 0;
    for (const int32_t length : lengths) {
      cum_keys.push_back(cum_keys.back() + length);
      used += pages_of(length);
      longest = std::max(longest, length);
    }
    max_pages = pages_of(longest) + 1;
    num_pages = used + 2;
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(17));
    size_t next = 0;
    for (const int32_t length : lengths) {
      for (int32_t i = 0; i < max_pages; ++i) {
        page_table.push_back(i < pages_of(length) ? order[next++] : std::numeric_limits<int32_t>::min());
      }
    }
  }

  int32_t pages_of(int32_t length) const { return (length + shape.page_size - 1) / shape.page_size; }
  int64_t elements() const {
    return int64_t{num_pages} * shape.num_kv_heads * shape.page_size * shape.head_dim;
  }
  int64_t width() const { return int64_t{shape.num_kv_heads} * shape.head_dim; }
  // Place of element i of a key's row in the pages.
  int64_t place(int64_t sequence, int32_t position, int64_t i) const {
    const int64_t page = page_table[sequence * max_pages + position / shape.page_size];
    const int64_t row = (page * shape.num_kv_heads + i / shape.head_dim) * shape.page_size;
    return (row + position % shape.page_size) * shape.head_dim + i % shape.head_dim;
  }
};

TEST_F(RowsCuda, GatheringACacheLaysTheKeysOfEverySequenceOneAfterTheOther) {
  for_every_kind([&](DType dtype) {
    for (const CacheShape& shape : {CacheShape{16, 8, 128}, CacheShape{32, 1, 64}, CacheShape{128, 4, 128},
                                    CacheShape{16, 3, 96}, CacheShape{1, 2, 7}, CacheShape{32, 2, 256}}) {
      SCOPED_TRACE("pages of " + std::to_string(shape.page_size) + ", head_dim " +
                   std::to_string(shape.head_dim));
      const CacheCase cache(shape, {1, 17, 0, 129, 16, 300, 0, 31});
      const Elements keys = random_elements(dtype, cache.elements(), 20);
      const Elements values = random_elements(dtype, cache.elements(), 21);
      constexpr int64_t kBeyond = 5;  // rows of no sequence
      const int64_t total = cache.cum_keys.back() + kBeyond;
      GuardedArray& packed_keys = put(Elements(dtype, total * cache.width(), kOld));
      GuardedArray& packed_values = put(Elements(dtype, total * cache.width(), kOld));
      gather_cache_cuda({.sequences = static_cast<int64_t>(cache.lengths.size()),
                         .total_keys = total,
                         .num_kv_heads = shape.num_kv_heads,
                         .head_dim = shape.head_dim,
                         .page_size = shape.page_size,
                         .max_pages = cache.max_pages,
                         .num_pages = cache.num_pages,
                         .dtype = dtype,
                         .key_pages = put(keys).data(),
                         .value_pages = put(values).data(),
                         .page_table = put(cache.page_table),
                         .cum_keys = put(cache.cum_keys),
                         .keys = packed_keys.data(),
                         .values = packed_values.data()},
                        gpu_limits(), stream_);
      const Elements key_rows = get(dtype, packed_keys), value_rows = get(dtype, packed_values);
      for (size_t b = 0; b < cache.lengths.size(); ++b) {
        for (int32_t position = 0; position < cache.lengths[b]; ++position) {
          for (int64_t i = 0; i < cache.width(); ++i) {
            const int64_t at = (cache.cum_keys[b] + position) * cache.width() + i;
            const int64_t from = cache.place(static_cast<int64_t>(b), position, i);
            ASSERT_EQ(key_rows.get(at), keys.get(from)) << "sequence " << b << " key " << position;
            ASSERT_EQ(value_rows.get(at), values.get(from)) << "sequence " << b << " key " << position;
          }
        }
      }
      for (int64_t at = cache.cum_keys.back() * cache.width(); at < total * cache.width(); ++at) {
        ASSERT_EQ(key_rows.get(at), kOld);
        ASSERT_EQ(value_rows.get(at), kOld);
      }
    }
  });
}

TEST_F(RowsCuda, GatheringACacheGivesNanForPagesThatDoNotExist) {
  for_every_kind([&](DType dtype) {
    CacheCase cache({16, 2, 64}, {40, 33});
    cache.page_table[1] = cache.num_pages;       // keys 16 to 31 of sequence 0
    cache.page_table[cache.max_pages + 2] = -1;  // key 32 of sequence 1
    const Elements pages = random_elements(dtype, cache.elements(), 22);
    GuardedArray& device_pages = put(pages);
    GuardedArray& keys = put(Elements(dtype, 73 * cache.width(), kOld));
    GuardedArray& values = put(Elements(dtype, 73 * cache.width(), kOld));
    gather_cache_cuda({.sequences = 2,
                       .total_keys = 73,
                       .num_kv_heads = 2,
                       .head_dim = 64,
                       .page_size = 16,
                       .max_pages = cache.max_pages,
                       .num_pages = cache.num_pages,
                       .dtype = dtype,
                       .key_pages = device_pages.data(),
                       .value_pages = device_pages.data(),
                       .page_table = put(cache.page_table),
                       .cum_keys = put(cache.cum_keys),
                       .keys = keys.data(),
                       .values = values.data()},
                      gpu_limits(), stream_);
    const Elements result = get(dtype, keys);
    for (int64_t row = 0; row < 73; ++row) {
      const bool missing = (row >= 16 && row < 32) || row == 72;
      for (int64_t i = 0; i < cache.width(); ++i) {
        ASSERT_EQ(std::isnan(result.get(row * cache.width() + i)), missing) << "row " << row;
      }
    }
    ASSERT_EQ(values.download(stream_), keys.download(stream_));
  });
}

}  // namespace
}  // namespace allot::kernels
