// A pass on the CPU beside the decoder it wraps: whose token is chosen, and what a slot has seen.
#include "model/cpu_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tests/model/checkpoints.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;

class CpuBackendTest : public testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options;
    options.dtype = kernels::DType::kFloat32;
    options.page_size = 16;
    options.max_sequences = 4;
    options.cache_tokens = 64;
    options.threads = 2;
    return options;
  }
  static std::unique_ptr<Backend> load() {
    const ModelConfig config = read_model_config(kLlamaGroup4);
    return make_cpu_backend(WeightsSource::checkpoint(kLlamaGroup4, config), config, options());
  }

  // Two prompts that begin their sequences, on pages 0 and 1.
  static ForwardBatch two_prompts() {
    ForwardBatch batch;
    batch.tokens = {5, 9, 40, 7, 70};
    batch.query_start = {0, 3, 5};
    batch.lengths = {3, 2};
    batch.page_table = {0, 1};
    batch.max_pages = 1;
    batch.budgets.assign(2 * 2, kernels::kDenseBudget);
    batch.draws.resize(2);
    batch.output_rows = {2, 4};
    place_tokens(batch, 16);
    return batch;
  }

  // The most likely token of each output row, without `but` in row 0.
  std::vector<int32_t> likeliest(std::span<const int32_t> but = {}) {
    const std::span<const float> logits = backend->logits(two_prompts(), {});
    std::vector<int32_t> tokens;
    for (int64_t row = 0; row < 2; ++row) {
      std::vector<float> values(logits.begin() + row * kVocabulary, logits.begin() + (row + 1) * kVocabulary);
      for (int32_t id : but) {
        if (row == 0) values[id] = -INFINITY;
      }
      tokens.push_back(argmax(values));
    }
    return tokens;
  }

  std::vector<int32_t> step(const std::vector<TokenChoice>& choices) {
    backend->submit(two_prompts(), {}, choices);
    const std::span<const int32_t> tokens = backend->take();
    return {tokens.begin(), tokens.end()};
  }

  std::unique_ptr<Backend> backend = load();
};

TEST_F(CpuBackendTest, HasTheCacheThatWasPlanned) {
  EXPECT_EQ(backend->cache_shape().num_pages, 4);
  EXPECT_EQ(backend->cache_shape().page_size, 16);
}

TEST_F(CpuBackendTest, ChoosesForEveryOutputRow) {
  backend->open_slot(3, {});
  backend->open_slot(1, {});
  const std::vector<int32_t> expected = likeliest();
  ASSERT_NE(expected[0], expected[1]);
  EXPECT_EQ(step({{.slot = 3}, {.slot = 1}}), expected);
}

// A penalty this strong rules out every token seen whose logit is positive, which the likeliest one's is.
TEST_F(CpuBackendTest, CountsChosenTokensAndPromptsAsSeenUntilTheSlotIsTakenAgain) {
  const TokenChoice penalised{.slot = 0, .sampling = {.repetition_penalty = 1e30}};
  const TokenChoice other{.slot = 2};
  backend->open_slot(0, {});
  backend->open_slot(2, {});
  const std::vector<int32_t> first = likeliest();
  ASSERT_GT(backend->logits(two_prompts(), {})[first[0]], 0);
  const int32_t second = likeliest(std::vector{first[0]})[0];
  const int32_t third = likeliest(std::vector{first[0], second})[0];

  EXPECT_EQ(step({penalised, other}), first);
  EXPECT_THAT(step({penalised, other}), ElementsAre(second, first[1]));
  backend->open_slot(0, std::vector{second});
  EXPECT_THAT(step({penalised, other}), ElementsAre(first[0], first[1]));
  EXPECT_THAT(step({penalised, other}), ElementsAre(third, first[1]));
}

TEST_F(CpuBackendTest, DrawsAtTheCoordinatesOfTheChoice) {
  const auto drawn = [&](uint32_t question, uint32_t position) {
    std::vector<int32_t> tokens;
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const kernels::SequenceDraws draws{.key = {.run_seed = seed, .sampling_seed = 1}, .question = question};
      const TokenChoice choice{
          .slot = 0, .sampling = {.temperature = 1}, .draws = draws, .position = position};
      tokens.push_back(step({choice, {.slot = 1}})[0]);
    }
    return tokens;
  };
  backend->open_slot(0, {});
  backend->open_slot(1, {});
  const std::vector<int32_t> tokens = drawn(4, 2);
  EXPECT_EQ(drawn(4, 2), tokens);
  EXPECT_NE(drawn(5, 2), tokens);
  EXPECT_NE(drawn(4, 3), tokens);
}

}  // namespace
}  // namespace allot::model
