// What the row operations and the token sampler on CUDA refuse before anything is queued; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/rows_cuda.h"
#include "kernels/token_sampler_cuda.h"
#include "tests/message_of.h"

namespace allot::kernels {
namespace {

using ::testing::HasSubstr;

constexpr DeviceLimits kH200{
    .compute_capability = 90, .multiprocessors = 132, .shared_bytes_per_block = 232448};
float data[16];  // an address; nothing follows it

RotaryParams rotary() {
  RotaryParams p;
  p.tokens = 1;
  p.num_q_heads = 4;
  p.num_kv_heads = 2;
  p.head_dim = 64;
  p.qkv = p.key_pages = p.value_pages = data;
  p.qkv_stride = 512;
  p.cos = p.sin = data;
  p.positions = reinterpret_cast<const int32_t*>(data);
  p.slots = reinterpret_cast<const int64_t*>(data);
  p.num_pages = 10;
  p.page_size = 16;
  return p;
}

TEST(RowsCudaHost, RefuseWhatTheyCannotDoWithTheValues) {
  const auto norm = [](RmsNormParams p) {
    return message_of<InvalidArgument>([&] { rms_norm_cuda(p, kH200, nullptr); });
  };
  EXPECT_EQ(norm({.rows = 1, .width = 0}), "rms_norm on CUDA: width is 0; expected at least 1");
  EXPECT_EQ(norm({.rows = -2, .width = 8}), "rms_norm on CUDA: rows is -2; expected 0 to 2147483647");
  EXPECT_EQ(norm({.rows = 1, .width = 8, .epsilon = -1}),
            "rms_norm on CUDA: epsilon is -1; expected 0 or more");
  EXPECT_EQ(norm({.rows = 1, .width = 8, .input = data}),
            "rms_norm on CUDA: weight is null; it must point to device memory");

  const auto silu = [](SiluAndMultiplyParams p) {
    return message_of<InvalidArgument>([&] { silu_and_multiply_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(silu({.rows = 1, .width = 1 << 30}), HasSubstr("width is 1073741824; expected 1 to 16776960"));
  EXPECT_THAT(silu({.rows = 1, .width = 8, .gate_up = data}), HasSubstr("out is null"));

  EXPECT_EQ(
      message_of<InvalidArgument>([] { gather_embeddings_cuda({.tokens = 1, .width = 8}, kH200, nullptr); }),
      "gather_embeddings on CUDA: vocab_size is 0; expected at least 1");
  EXPECT_EQ(message_of<InvalidArgument>([] { gather_rows_cuda({.rows = 1, .width = 8}, kH200, nullptr); }),
            "gather_rows on CUDA: source_rows is 0; expected at least 1");
}

TEST(RowsCudaHost, RefuseRotaryShapesThatDoNotFit) {
  const auto refused = [](const auto& change) {
    RotaryParams p = rotary();
    change(p);
    return message_of<InvalidArgument>([&] { rotate_and_store_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(refused([](RotaryParams& p) { p.head_dim = 63; }),
              HasSubstr("head_dim is 63; expected an even number"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.qkv_stride = 511; }),
              HasSubstr("qkv_stride is 511; expected at least 512"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.slots = nullptr; }), HasSubstr("slots is null"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.norm_epsilon = -1; }), HasSubstr("norm_epsilon is -1"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.num_pages = int64_t{1} << 28; }),
              HasSubstr("the pool has 268435456 pages of 16 tokens; expected 0 to 268435455 pages"));
}

TEST(RowsCudaHost, RefuseCachesThatCannotBeGathered) {
  const auto refused = [](const auto& change) {
    GatherCacheParams p{.sequences = 2,
                        .total_keys = 40,
                        .num_kv_heads = 8,
                        .head_dim = 128,
                        .page_size = 16,
                        .max_pages = 2,
                        .num_pages = 4,
                        .key_pages = data,
                        .value_pages = data,
                        .page_table = reinterpret_cast<const int32_t*>(data),
                        .cum_keys = reinterpret_cast<const int32_t*>(data),
                        .keys = data,
                        .values = data};
    change(p);
    return message_of<InvalidArgument>([&] { gather_cache_cuda(p, kH200, nullptr); });
  };
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.total_keys = int64_t{1} << 31; }),
            "gather_cache on CUDA: total_keys is 2147483648; expected 0 to 2147483647");
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.page_size = 0; }),
            "gather_cache on CUDA: page_size is 0; expected at least 1");
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.num_pages = -1; }),
            "gather_cache on CUDA: the pool has -1 pages; expected 0 to 2147483647");
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.num_kv_heads = 1 << 20; }),
            "gather_cache on CUDA: a key has 1048576 heads of 128 elements; expected at most 16777216 "
            "elements");
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.cum_keys = nullptr; }),
            "gather_cache on CUDA: cum_keys is null; it must point to device memory");
  EXPECT_EQ(refused([](GatherCacheParams& p) { p.total_keys = 0; }), "nothing was thrown")
      << "nothing to copy";
}

ChooseTokensParams choice() {
  ChooseTokensParams p;
  p.rows = 2;
  p.vocab_size = 100;
  p.logits = reinterpret_cast<const void*>(0x1000);
  p.logits_stride = 104;
  p.rules = reinterpret_cast<const TokenRule*>(0x2000);
  p.draws = reinterpret_cast<const SequenceDraws*>(0x3000);
  p.positions = reinterpret_cast<const int32_t*>(0x4000);
  p.seen = reinterpret_cast<uint32_t*>(0x5000);
  p.seen_rows = 2;
  p.chosen = p.fault = reinterpret_cast<int32_t*>(0x6000);
  return p;
}

TEST(TokenSamplerCudaHost, RefusesWhatItCannotDoWithTheValues) {
  const auto refused = [](const auto& change) {
    ChooseTokensParams p = choice();
    change(p);
    return message_of<InvalidArgument>([&] { choose_tokens_cuda(p, kH200, nullptr); });
  };
  EXPECT_EQ(refused([](ChooseTokensParams& p) { p.vocab_size = 300000; }),
            "choose_tokens on CUDA: vocab_size is 300000; expected 1 to 262144");
  EXPECT_EQ(
      refused([](ChooseTokensParams& p) { p.logits_stride = 100; }),
      "choose_tokens on CUDA: logits_stride is 100 elements; expected a multiple of 8, at least vocab_size "
      "= 100");
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.logits_stride = 96; }), HasSubstr("logits_stride is 96"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.dtype = DType::kFloat16; }),
              HasSubstr("logits are float16; expected bfloat16 or float32"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.logits = reinterpret_cast<const void*>(0x1008); }),
              HasSubstr("0x1008, which is not a multiple of 16"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.seen = nullptr; }), HasSubstr("seen is null"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.seen_rows = 1; }),
              HasSubstr("seen has 1 rows for 2 rows of logits"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.rows = -1; }), HasSubstr("rows is -1"));

  EXPECT_THAT(message_of<InvalidArgument>([] {
                clear_seen_cuda({.vocab_size = 8, .seen = choice().seen, .seen_rows = 4, .row = 4}, nullptr);
              }),
              HasSubstr("row is 4; seen has rows 0 to 3"));
  EXPECT_THAT(
      message_of<InvalidArgument>([] { mark_seen_cuda({.tokens = 1, .vocab_size = 8}, kH200, nullptr); }),
      HasSubstr("ids is null"));
}

TEST(TokenSamplerCudaHost, SharesARowAmongMoreBlocksTheFewerRowsThereAre) {
  EXPECT_EQ(cuda::blocks_of_row(1, kH200), 16u);
  EXPECT_EQ(cuda::blocks_of_row(512, kH200), 1u);
  uint32_t last = cuda::kMaxRowBlocks;
  for (int64_t rows = 1; rows <= 1024; ++rows) {
    const uint32_t blocks = cuda::blocks_of_row(rows, kH200);
    EXPECT_LE(blocks, last) << rows;
    EXPECT_EQ(blocks & (blocks - 1), 0u) << rows;
    last = blocks;
  }
  EXPECT_EQ(cuda::blocks_of_row(1, {.compute_capability = 80, .multiprocessors = 108}), 1u)
      << "clusters need compute capability 9.0";
}

}  // namespace
}  // namespace allot::kernels
