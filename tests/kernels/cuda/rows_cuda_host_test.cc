// What the row operations and the token sampler on CUDA refuse before anything is queued; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/peer_sum_cuda.h"
#include "kernels/rows_cuda.h"
#include "kernels/token_sampler_cuda.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

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
  EXPECT_THAT(norm({.rows = 1, .width = 0}), Names("rms_norm", "width", 0, 1));
  EXPECT_THAT(norm({.rows = -2, .width = 8}), Names("rms_norm", "rows", -2, 0, 2147483647));
  EXPECT_THAT(norm({.rows = 1, .width = 8, .epsilon = -1}), Names("rms_norm", "epsilon", -1, 0));
  EXPECT_THAT(norm({.rows = 1, .width = 8, .input = data}), Names("rms_norm", "weight", "null"));

  const auto silu = [](ActivateAndMultiplyParams p) {
    return message_of<InvalidArgument>([&] { activate_and_multiply_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(silu({.rows = 1, .width = 1 << 30}), Names("width", 1 << 30, 1, 16776960));
  EXPECT_THAT(silu({.rows = 1, .width = 8, .gate_up = data}), Names("out", "null"));

  const auto divergence = [](DivergenceParams p) {
    return message_of<InvalidArgument>([&] { row_divergence_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(divergence({.rows = 1, .vocab_size = 1 << 20, .stride = 1 << 20}),
              Names("row_divergence", "vocab_size", 1 << 20, 1, 262144));
  EXPECT_THAT(divergence({.rows = 1, .vocab_size = 8, .stride = 8, .dense = data}),
              Names("row_divergence", "sampled", "null"));

  EXPECT_THAT(
      message_of<InvalidArgument>([] { gather_embeddings_cuda({.tokens = 1, .width = 8}, kH200, nullptr); }),
      Names("gather_embeddings", "vocab_size", 0, 1));
  EXPECT_THAT(message_of<InvalidArgument>([] { gather_rows_cuda({.rows = 1, .width = 8}, kH200, nullptr); }),
              Names("gather_rows", "source_rows", 0, 1));
}

TEST(RowsCudaHost, RefuseRotaryShapesThatDoNotFit) {
  const auto refused = [](const auto& change) {
    RotaryParams p = rotary();
    change(p);
    return message_of<InvalidArgument>([&] { rotate_and_store_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(refused([](RotaryParams& p) { p.head_dim = 63; }), Names("head_dim", 63, "even"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.qkv_stride = 511; }), Names("qkv_stride", 511, 512));
  EXPECT_THAT(refused([](RotaryParams& p) { p.slots = nullptr; }), Names("slots", "null"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.norm_epsilon = -1; }), Names("norm_epsilon", -1));
  EXPECT_THAT(refused([](RotaryParams& p) { p.num_pages = int64_t{1} << 28; }),
              Names("pages", 268435456, 16, 0, 268435455));
}

TEST(RowsCudaHost, RefusePlanesThatTheRotationHasNoKernelFor) {
  alignas(16) static float aligned[16];
  const auto refused = [](const auto& change) {
    RotaryParams p = rotary();
    p.dtype = DType::kBFloat16;
    p.qkv = p.value_pages = aligned;
    p.key_pages = nullptr;
    p.cos = p.sin = aligned;
    p.planes = {.high = aligned,
                .low = reinterpret_cast<int8_t*>(aligned),
                .query = reinterpret_cast<int8_t*>(aligned),
                .query_units = aligned};
    change(p);
    return message_of<InvalidArgument>([&] { rotate_and_store_cuda(p, kH200, nullptr); });
  };
  EXPECT_EQ(refused([](RotaryParams& p) { p.tokens = 0; }), "nothing was thrown") << "nothing to rotate";
  EXPECT_THAT(refused([](RotaryParams& p) { p.dtype = DType::kFloat32; }), Names("float32", "bfloat16"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.head_dim = 32; }), Names("head_dim", 32, 64, 128));
  EXPECT_THAT(refused([](RotaryParams& p) { p.qkv_stride = 516; }), Names("stride", 516, 8));
  EXPECT_THAT(refused([](RotaryParams& p) { p.page_size = 24; }), Names("page_size", 24, 16));
  EXPECT_THAT(refused([](RotaryParams& p) { p.planes.low += 8; }), Names("planes.low", 16));
  EXPECT_THAT(refused([](RotaryParams& p) { p.planes.query += 8; }), Names("planes.query", 16));
  EXPECT_THAT(refused([](RotaryParams& p) { p.planes.query_units = nullptr; }),
              Names("planes.query_units", "null"));
  EXPECT_THAT(refused([](RotaryParams& p) { p.planes.high = nullptr; }), Names("key_pages", "null"));
  EXPECT_THAT(refused([](RotaryParams& p) {
                p.key_pages = aligned;
                p.planes.high = nullptr;
              }),
              Names("planes.high", "planes.low"));
}

TEST(RowsCudaHost, RefuseSplitKeysThatCannotBeRestored) {
  alignas(16) static float aligned[16];
  const auto refused = [](const auto& change) {
    RestoreSplitKeysParams p{.sequences = 2,
                             .num_kv_heads = 8,
                             .head_dim = 128,
                             .page_size = 16,
                             .max_pages = 2,
                             .num_pages = 4,
                             .high = aligned,
                             .low = reinterpret_cast<int8_t*>(aligned),
                             .page_table = reinterpret_cast<const int32_t*>(aligned),
                             .lengths = reinterpret_cast<const int32_t*>(aligned),
                             .key_pages = aligned};
    change(p);
    return message_of<InvalidArgument>([&] { restore_split_keys_cuda(p, kH200, nullptr); });
  };
  using P = RestoreSplitKeysParams;
  EXPECT_EQ(refused([](P& p) { p.sequences = 0; }), "nothing was thrown") << "nothing to restore";
  EXPECT_THAT(refused([](P& p) { p.sequences = 8193; }),
              Names("restore_split_keys on CUDA", "sequences", 8193, 0, 8192));
  EXPECT_THAT(refused([](P& p) { p.head_dim = 96; }), Names("head_dim", 96, 64, 128));
  EXPECT_THAT(refused([](P& p) { p.page_size = 40; }), Names("page_size", 40, 16));
  EXPECT_THAT(refused([](P& p) { p.max_pages = 0; }), Names("max_pages", 0, 1));
  EXPECT_THAT(refused([](P& p) { p.num_pages = int64_t{1} << 26; }),
              Names("pages", 67108864, 16, 8, 33554431));
  EXPECT_THAT(refused([](P& p) { p.dtype = DType::kFloat32; }), Names("float32", "float16"));
  EXPECT_THAT(refused([](P& p) { p.lengths = nullptr; }), Names("lengths", "null"));
  EXPECT_THAT(refused([](P& p) { p.low += 8; }), Names("low", 16));
  EXPECT_THAT(refused([](P& p) { p.key_pages = aligned + 1; }), Names("key_pages", 16));
}

TEST(RowsCudaHost, RefuseNormsThatCannotBeStored) {
  const auto refused = [](const auto& change) {
    ValueNormsParams p{.tokens = 2,
                       .num_kv_heads = 8,
                       .head_dim = 128,
                       .values = data,
                       .value_stride = 1024,
                       .value_norms = reinterpret_cast<float*>(data),
                       .num_pages = 4,
                       .page_size = 16,
                       .slots = reinterpret_cast<const int64_t*>(data)};
    change(p);
    return message_of<InvalidArgument>([&] { store_value_norms_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(refused([](ValueNormsParams& p) { p.value_stride = 1023; }),
              Names("store_value_norms on CUDA", "value_stride", 1023, 1024));
  EXPECT_THAT(refused([](ValueNormsParams& p) { p.slots = nullptr; }), Names("slots", "null"));
  EXPECT_THAT(refused([](ValueNormsParams& p) { p.num_pages = int64_t{1} << 28; }),
              Names("pages", 268435456, 16, 0, 268435455));
  EXPECT_EQ(refused([](ValueNormsParams& p) { p.tokens = 0; }), "nothing was thrown") << "nothing to store";
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
  EXPECT_THAT(refused([](GatherCacheParams& p) { p.total_keys = int64_t{1} << 31; }),
              Names("gather_cache", "total_keys", 2147483648, 0, 2147483647));
  EXPECT_THAT(refused([](GatherCacheParams& p) { p.page_size = 0; }),
              Names("gather_cache", "page_size", 0, 1));
  EXPECT_THAT(refused([](GatherCacheParams& p) { p.num_pages = -1; }),
              Names("gather_cache", -1, 0, 2147483647));
  EXPECT_THAT(refused([](GatherCacheParams& p) { p.num_kv_heads = 1 << 20; }),
              Names("gather_cache", 1048576, 128, 16777216));
  EXPECT_THAT(refused([](GatherCacheParams& p) { p.cum_keys = nullptr; }),
              Names("gather_cache", "cum_keys", "null"));
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
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.vocab_size = 300000; }),
              Names("choose_tokens", "vocab_size", 300000, 1, 262144));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.logits_stride = 100; }),
              Names("choose_tokens", "logits_stride", 100, 8, "vocab_size", 100));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.logits_stride = 96; }), Names("logits_stride", 96));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.dtype = DType::kFloat16; }),
              Names("logits", "float16", "bfloat16", "float32"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.logits = reinterpret_cast<const void*>(0x1008); }),
              Names("0x1008", 16));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.seen = nullptr; }), Names("seen", "null"));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.seen_rows = 1; }), Names("seen", 1, 2));
  EXPECT_THAT(refused([](ChooseTokensParams& p) { p.rows = -1; }), Names("rows", -1));

  EXPECT_THAT(message_of<InvalidArgument>([] {
                clear_seen_cuda({.vocab_size = 8, .seen = choice().seen, .seen_rows = 4, .row = 4}, nullptr);
              }),
              Names("row", 4, "seen", 0, 3));
  EXPECT_THAT(
      message_of<InvalidArgument>([] { mark_seen_cuda({.tokens = 1, .vocab_size = 8}, kH200, nullptr); }),
      Names("ids", "null"));
  EXPECT_THAT(message_of<InvalidArgument>([] { feed_tokens_cuda({.tokens = 1}, kH200, nullptr); }),
              Names("feed_tokens", "choices", "null"));
}

TEST(PeerSumCudaHost, RefusesWhatItCannotDoWithTheValues) {
  alignas(256) static std::byte mailbox[256];
  const auto sum = [](PeerSumParams p) {
    return message_of<InvalidArgument>([&] { peer_sum_cuda(p, kH200, nullptr); });
  };
  PeerSumParams p = {.rank = 0,
                     .ranks = 2,
                     .count = 8,
                     .data = data,
                     .mailboxes = {mailbox, mailbox},
                     .stop = reinterpret_cast<const uint32_t*>(data)};
  const auto with = [&](auto field, auto value) {
    PeerSumParams q = p;
    q.*field = value;
    return sum(q);
  };
  EXPECT_THAT(with(&PeerSumParams::ranks, 3), Names("peer_sum", "3 ranks", "on 2 ranks", "on 4", "on 8"));
  EXPECT_THAT(with(&PeerSumParams::count, 6), Names("peer_sum", "count 6", "bfloat16"));
  EXPECT_THAT(with(&PeerSumParams::count, most_peer_sum_bytes(2) / 2 + 4),
              Names("peer_sum", "524288 bytes on 2 ranks"));
  EXPECT_THAT(with(&PeerSumParams::rank, 2), Names("peer_sum", "rank is 2 of 2"));
  EXPECT_THAT(with(&PeerSumParams::data, static_cast<void*>(mailbox + 4)),
              Names("peer_sum", "data", "8 bytes"));
  EXPECT_THAT(with(&PeerSumParams::stop, nullptr), Names("peer_sum", "stop"));
  p.mailboxes[1] = mailbox + 128;
  EXPECT_THAT(sum(p), Names("peer_sum", "mailbox of rank 1", "256 bytes"));
}

TEST(PeerSumCudaHost, NormsWhatItHasAKernelFor) {
  RmsNormParams norm{.rows = 4,
                     .width = 8192,
                     .dtype = DType::kBFloat16,
                     .epsilon = 1e-5f,
                     .input = data,
                     .residual = data,
                     .weight = data,
                     .out = data};
  const auto takes = [&](int32_t ranks, auto field, auto value) {
    RmsNormParams other = norm;
    other.*field = value;
    return peer_sum_norm_takes(ranks, other, kH200);
  };
  EXPECT_TRUE(takes(2, &RmsNormParams::rows, 32));
  EXPECT_FALSE(takes(2, &RmsNormParams::rows, 33)) << "more than is sent";
  EXPECT_TRUE(takes(4, &RmsNormParams::rows, 16));
  EXPECT_FALSE(takes(4, &RmsNormParams::rows, 17));
  EXPECT_FALSE(takes(3, &RmsNormParams::rows, 1));
  EXPECT_FALSE(takes(2, &RmsNormParams::width, 8196)) << "more than a cluster has threads for";
  EXPECT_FALSE(takes(2, &RmsNormParams::width, 4094)) << "no whole eights of bytes";
  EXPECT_FALSE(takes(2, &RmsNormParams::int8_grid, true));
  EXPECT_FALSE(peer_sum_norm_takes(2, norm, {.compute_capability = 80, .multiprocessors = 108}));
  alignas(256) static std::byte mailbox[256];
  PeerSumParams sum = {
      .ranks = 2, .mailboxes = {mailbox, mailbox}, .stop = reinterpret_cast<const uint32_t*>(data)};
  const auto message = [&] {
    return message_of<InvalidArgument>([&] { peer_sum_norm_cuda(sum, norm, kH200, nullptr); });
  };
  norm.rows = 33;
  EXPECT_THAT(message(), Names("peer_sum", "33 rows of 8192 bfloat16", "2 ranks"));
  norm.rows = 1;
  sum.count = 8;
  EXPECT_THAT(message(), Names("peer_sum", "count 0"));
  sum.count = 0;
  norm.weight = reinterpret_cast<const std::byte*>(data) + 4;
  EXPECT_THAT(message(), Names("peer_sum", "weight", "8 bytes"));
  sum.rank = -1;
  EXPECT_THAT(message(), Names("peer_sum", "rank is -1 of 2"));
}

TEST(TokenSamplerCudaHost, SharesARowAmongMoreBlocksTheFewerRowsThereAre) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EXPECT_EQ(cuda::blocks_of_row(1, dtype, kH200), 16u);
    EXPECT_EQ(cuda::blocks_of_row(512, dtype, kH200), 1u);
    uint32_t last = cuda::kMaxRowBlocks;
    for (int64_t rows = 1; rows <= 1024; ++rows) {
      const uint32_t blocks = cuda::blocks_of_row(rows, dtype, kH200);
      EXPECT_LE(blocks, last) << rows;
      EXPECT_EQ(blocks & (blocks - 1), 0u) << rows;
      last = blocks;
    }
    EXPECT_EQ(cuda::blocks_of_row(1, dtype, {.compute_capability = 80, .multiprocessors = 108}), 1u)
        << "clusters need compute capability 9.0";
  }
  EXPECT_EQ(cuda::blocks_of_row(40, DType::kFloat32, kH200), 2u);
  EXPECT_EQ(cuda::blocks_of_row(40, DType::kBFloat16, kH200), 1u) << "it counts values";
}

}  // namespace
}  // namespace allot::kernels
