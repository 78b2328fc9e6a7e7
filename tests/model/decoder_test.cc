// The forward pass alone: bits that must not depend on the batch, at the sizes of a real small model.
#include "model/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/model/checkpoints.h"

namespace allot::model {
namespace {

using kernels::DType;

constexpr int32_t kPageSize = 16;
constexpr int32_t kPagesEach = 20;  // pages i * kPagesEach … belong to sequence i

class DecoderBits : public testing::TestWithParam<DType> {
 protected:
  static Decoder load(int threads) {
    const ModelConfig config = read_model_config(kTinyGsm);
    return Decoder(config,
                   load_weights(WeightsSource::checkpoint(kTinyGsm, config), config, GetParam(), threads),
                   {.num_layers = config.num_layers,
                    .num_kv_heads = config.num_kv_heads,
                    .head_dim = config.head_dim,
                    .page_size = kPageSize,
                    .num_pages = 40 * kPagesEach,
                    .dtype = GetParam()},
                   4096, threads);
  }

  // Sequence `number` gets `count` new tokens after `cached`; its last token's logits are wanted.
  void append(ForwardBatch& batch, int32_t number, int32_t cached, int32_t count) const {
    if (batch.query_start.empty()) batch.query_start.push_back(0);
    for (int32_t i = 0; i < count; ++i) batch.tokens.push_back((7 * number + 3 * (cached + i)) % vocab);
    batch.query_start.push_back(batch.num_tokens());
    batch.lengths.push_back(cached + count);
    batch.max_pages = kPagesEach;
    for (int32_t page = 0; page < kPagesEach; ++page) batch.page_table.push_back(number * kPagesEach + page);
    batch.draws.push_back({.key = {1, 2}, .question = static_cast<uint32_t>(number)});
    batch.output_rows.push_back(batch.num_tokens() - 1);
  }

  // Every sequence samples 6 keys in every layer.
  std::vector<float> run(Decoder& decoder, ForwardBatch batch) const {
    batch.budgets.assign(layers * batch.batch(), 6);
    place_tokens(batch, kPageSize);
    const std::span<float> logits = decoder.forward(batch, {.estimator = kernels::Estimator::kSys});
    return {logits.begin(), logits.end()};
  }

  std::vector<float> row(const std::vector<float>& logits, int64_t index) const {
    return {logits.begin() + index * vocab, logits.begin() + (index + 1) * vocab};
  }

  const int32_t vocab = read_model_config(kTinyGsm).vocab_size;
  const int32_t layers = read_model_config(kTinyGsm).num_layers;
};

TEST_P(DecoderBits, OfASequenceAreTheSameAloneAndInABatch) {
  for (int threads : {1, 2}) {
    Decoder decoder = load(threads);
    ForwardBatch prefill, decode;
    for (int32_t number = 0; number < 37; ++number) append(prefill, number, 0, 1 + 13 * number % 90);
    for (int32_t number = 0; number < 37; ++number) append(decode, number, prefill.lengths[number], 1);
    const std::vector<float> prefilled = run(decoder, prefill), decoded = run(decoder, decode);
    for (int32_t number : {0, 1, 20, 36}) {
      ForwardBatch alone;
      append(alone, number, 0, prefill.lengths[number]);
      EXPECT_EQ(run(decoder, alone), row(prefilled, number))
          << "prefill of " << number << ", " << threads << " threads";
      ForwardBatch next;
      append(next, number, prefill.lengths[number], 1);
      EXPECT_EQ(run(decoder, next), row(decoded, number))
          << "decode of " << number << ", " << threads << " threads";
    }
  }
}

// Chunks as prefill_tokens allows them: a lone query is summed in another order.
TEST_P(DecoderBits, OfAPromptAreTheSameWholeAndInChunks) {
  Decoder decoder = load(2);
  ForwardBatch whole;
  append(whole, 3, 0, 300);
  const std::vector<float> expected = run(decoder, whole);
  int32_t done = 0;
  std::vector<float> last;
  for (int32_t chunk : {2, 16, 99, 37, 146}) {
    ForwardBatch part;
    append(part, 3, done, chunk);
    last = run(decoder, part);
    done += chunk;
  }
  ASSERT_EQ(done, 300);
  EXPECT_EQ(last, expected);
}

TEST_P(DecoderBits, OfTheLastRowAreTheSameWhenAllRowsAreAskedFor) {
  Decoder decoder = load(2);
  ForwardBatch last;
  append(last, 5, 0, 150);
  const std::vector<float> expected = run(decoder, last);
  ForwardBatch all = last;
  all.output_rows.resize(150);
  for (int64_t i = 0; i < 150; ++i) all.output_rows[i] = i;
  EXPECT_EQ(row(run(decoder, all), 149), expected);
  ForwardBatch none = last;
  none.output_rows.clear();
  EXPECT_TRUE(run(decoder, none).empty());
}

// In a fresh cache every page is like the other.
TEST_P(DecoderBits, DependOnThePagesOfACacheFilledAtRandom) {
  Decoder decoder = load(2);
  ForwardBatch here;
  append(here, 0, 40, 1);
  ForwardBatch elsewhere = here;
  for (int32_t& page : elsewhere.page_table) page += kPagesEach;
  EXPECT_EQ(run(decoder, here), run(decoder, elsewhere));
  decoder.fill_cache_at_random();
  const std::vector<float> logits = run(decoder, here);
  EXPECT_NE(logits, run(decoder, elsewhere));
  EXPECT_TRUE(std::ranges::all_of(logits, [](float value) { return std::isfinite(value); }));
}

INSTANTIATE_TEST_SUITE_P(DTypes, DecoderBits, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& dtype) { return std::string(name(dtype.param)); });

}  // namespace
}  // namespace allot::model
