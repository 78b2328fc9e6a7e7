// Keys and queries split on the GPU: the bytes that the CPU stores.
#include <random>

#include "cuda_launch.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::GuardedArray;

class CudaSplit : public testing::CudaTest {};

// Vectors of all magnitudes, some so small that one over them is infinite, with outliers, zeros and some that
// are no numbers.
Elements vectors_of(DType dtype, int64_t count, int32_t head_dim) {
  std::mt19937 random(static_cast<uint32_t>(head_dim));
  std::normal_distribution<float> normal;
  Elements vectors(dtype, count * head_dim, 0);
  for (int64_t v = 0; v < count; ++v) {
    const float scale = v % 13 == 8 ? 0x1p-125f : std::exp2(static_cast<float>(v % 21 - 10));
    for (int32_t i = 0; i < head_dim && v % 7 != 3; ++i)
      vectors.set(v * head_dim + i, normal(random) * scale * (i == 9 ? 30.0f : 1.0f));
    if (v % 11 == 5) vectors.set(v * head_dim + v % head_dim, v % 2 == 0 ? NAN : INFINITY);
  }
  return vectors;
}

TEST_F(CudaSplit, KeysHaveTheBytesThatTheCpuStores) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128}) {
      constexpr int64_t kSplitTokens = 77, kSplitPages = 3;
      constexpr int32_t kSplitHeads = 3, kSplitPage = 32;
      Elements keys = vectors_of(dtype, kSplitTokens * kSplitHeads, head_dim);
      std::vector<int64_t> slots;
      for (int64_t t = 0; t < kSplitTokens; ++t)
        slots.push_back(t % 9 == 4 ? -1 : (t * 5) % (kSplitPages * kSplitPage));
      const auto rows = static_cast<size_t>(kSplitPages * kSplitHeads * kSplitPage);
      std::vector<unsigned char> high(
          rows / kSplitBlockKeys * static_cast<size_t>(split_block_bytes(head_dim)), 0xAB);
      std::vector<int8_t> low(rows * static_cast<size_t>(head_dim), 0x5A);
      StoreSplitKeysParams p{.tokens = kSplitTokens,
                             .num_kv_heads = kSplitHeads,
                             .head_dim = head_dim,
                             .dtype = dtype,
                             .keys = keys.data(),
                             .key_stride = kSplitHeads * head_dim,
                             .high = high.data(),
                             .low = low.data(),
                             .num_pages = kSplitPages,
                             .page_size = kSplitPage,
                             .slots = slots.data()};
      GuardedArray on_keys(keys.bytes().size(), 16), on_high(high.size(), 16), on_low(low.size(), 16),
          on_slots(slots.size() * sizeof(int64_t), 8);
      on_keys.upload(keys.data(), nullptr);
      on_high.upload(high.data(), nullptr);
      on_low.upload(low.data(), nullptr);
      on_slots.upload(slots.data(), nullptr);
      store_split_keys(p);
      p.keys = on_keys.data();
      p.high = on_high.data();
      p.low = static_cast<int8_t*>(on_low.data());
      p.slots = static_cast<const int64_t*>(on_slots.data());
      store_split_keys_cuda(p, testing::gpu_limits(), nullptr);
      // NaN has many forms.
      std::vector<unsigned char> stored = on_high.download(nullptr);
      for (size_t block = 0; block < rows / kSplitBlockKeys; ++block) {
        for (int32_t key = 0; key < kSplitBlockKeys; ++key) {
          const size_t at = block * static_cast<size_t>(split_block_bytes(head_dim)) +
                            static_cast<size_t>(split_unit_offset(head_dim, key));
          float here = 0, there = 0;
          std::memcpy(&here, &high[at], sizeof here);
          std::memcpy(&there, &stored[at], sizeof there);
          if (std::isnan(here) && std::isnan(there)) std::memcpy(&stored[at], &high[at], sizeof here);
        }
      }
      EXPECT_TRUE(stored == high) << name(dtype) << " " << head_dim;
      const std::vector<unsigned char> stored_low = on_low.download(nullptr);
      EXPECT_EQ(std::memcmp(stored_low.data(), low.data(), low.size()), 0) << name(dtype) << " " << head_dim;
      on_high.expect_guards("high", nullptr);
      on_low.expect_guards("low", nullptr);
    }
  }
}

TEST_F(CudaSplit, QueriesHaveTheBytesThatTheCpuStores) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t head_dim : {64, 128}) {
      constexpr int64_t kSplitTokens = 19;
      constexpr int32_t kSplitHeads = 7;
      Elements queries = vectors_of(dtype, kSplitTokens * (kSplitHeads + 1), head_dim);
      std::vector<int8_t> planes(static_cast<size_t>(2 * kSplitTokens * kSplitHeads * head_dim));
      std::vector<float> units(static_cast<size_t>(kSplitTokens * kSplitHeads));
      SplitQueriesParams p{.tokens = kSplitTokens,
                           .num_q_heads = kSplitHeads,
                           .head_dim = head_dim,
                           .dtype = dtype,
                           .queries = queries.data(),
                           .query_stride = (kSplitHeads + 1) * head_dim,
                           .planes = planes.data(),
                           .units = units.data()};
      split_queries(p);
      GuardedArray on_queries(queries.bytes().size(), 16), on_planes(planes.size(), 16),
          on_units(units.size() * sizeof(float), 4);
      on_queries.upload(queries.data(), nullptr);
      p.queries = on_queries.data();
      p.planes = static_cast<int8_t*>(on_planes.data());
      p.units = static_cast<float*>(on_units.data());
      split_queries_cuda(p, testing::gpu_limits(), nullptr);
      const std::vector<unsigned char> stored = on_planes.download(nullptr);
      EXPECT_EQ(std::memcmp(stored.data(), planes.data(), planes.size()), 0)
          << name(dtype) << " " << head_dim;
      const std::vector<unsigned char> stored_units = on_units.download(nullptr);
      for (size_t i = 0; i < units.size(); ++i) {
        float there = 0;
        std::memcpy(&there, &stored_units[i * sizeof there], sizeof there);
        EXPECT_TRUE(there == units[i] || (std::isnan(there) && std::isnan(units[i]))) << i << ": " << there;
      }
      on_planes.expect_guards("planes", nullptr);
      on_units.expect_guards("units", nullptr);
    }
  }
}

}  // namespace
}  // namespace allot::kernels
