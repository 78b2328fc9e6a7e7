#include "worker/engine_divergence.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/names.h"

namespace allot::worker {
namespace {

using evaluation::MeteredDivergence;
using evaluation::MeteredPair;
using evaluation::MeteredText;

const std::filesystem::path kModel = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";

MeteredText text(uint32_t question, const std::string& reply) {
  return {.prompt = "Tom has 3 apples. He buys 4 more. How many apples has he?\n",
          .reply = reply,
          .key = {.run_seed = 1, .sampling_seed = 2},
          .question = question};
}

class EngineDivergenceTest : public testing::Test {
 protected:
  static EngineGenerator generator(kernels::Prefill prefill) {
    model::EngineOptions options{.max_sequences = 4};
    options.attention.prefill = prefill;
    return {kModel, options, {}};
  }
  EngineGenerator generator_ = generator(kernels::Prefill::kSampled);
  EngineDivergence meter_{&generator_};
  std::vector<int32_t> few_ = std::vector<int32_t>(8, 1), many_ = std::vector<int32_t>(8, 16);
};

TEST_F(EngineDivergenceTest, MeasuresTheReplyAsTheEnginesPrimitiveDoes) {
  const MeteredText measured = text(5, "3+4=7\n#### 7");
  const std::vector<MeteredDivergence> found =
      meter_.measure(std::vector{measured}, std::vector<MeteredPair>{{0, few_}, {0, many_}, {0, {}}});
  ASSERT_EQ(found.size(), 3u);
  std::vector<int32_t> ids = generator_.tokenizer().encode(measured.prompt);
  const auto prompt = static_cast<int32_t>(ids.size());
  const std::vector<int32_t> reply = generator_.tokenizer().encode(measured.reply, false);
  ids.insert(ids.end(), reply.begin(), reply.end());
  const std::vector<model::Fidelity> expected = generator_.engine().fidelity(
      std::vector<model::FidelityText>{
          {.ids = ids, .prompt_tokens = prompt, .key = measured.key, .question = 5}},
      std::vector<model::FidelityPair>{
          {.samples = few_, .attention = generator_.engine().options().attention},
          {.samples = many_, .attention = generator_.engine().options().attention}},
      {.mode = model::FidelityMode::kReply});
  EXPECT_EQ(found[0].divergence, expected[0].divergence);
  EXPECT_EQ(found[1].divergence, expected[1].divergence);
  EXPECT_GT(found[0].divergence, 2 * found[1].divergence);
  EXPECT_EQ(found[2].divergence, 0) << "exact attention";
  EXPECT_EQ(found[0].prompt_tokens, prompt);
  EXPECT_EQ(found[0].reply_tokens, static_cast<int32_t>(reply.size()));
  EXPECT_EQ(found[0].finish, Finish::kEos);
  EXPECT_EQ(meter_.tokens(measured), static_cast<int64_t>(ids.size()));
}

TEST_F(EngineDivergenceTest, BehindADensePrefillThePromptIsExact) {
  EngineGenerator exact_prompt = generator(kernels::Prefill::kDense);
  EngineDivergence decode(&exact_prompt);
  const std::vector<MeteredText> texts = {text(5, "3+4=7\n#### 7")};
  const std::vector<MeteredPair> pairs = {{0, few_}};
  EXPECT_LT(decode.measure(texts, pairs)[0].divergence, meter_.measure(texts, pairs)[0].divergence);
}

TEST_F(EngineDivergenceTest, OtherTextsAndSchedulesBesideItChangeNothing) {
  const std::vector<MeteredText> texts = {text(5, "3+4=7\n#### 7"), text(6, "3+4=8\n#### 8")};
  const double together =
      meter_.measure(texts, std::vector<MeteredPair>{{1, many_}, {0, many_}, {0, few_}, {1, few_}})[2]
          .divergence;
  const double alone =
      meter_.measure(std::vector{texts[0]}, std::vector<MeteredPair>{{0, few_}})[0].divergence;
  EXPECT_NEAR(together, alone, 1e-3 * alone);
}

TEST_F(EngineDivergenceTest, AReplyBeyondTheModelsPositionsIsCutAndSaysSo) {
  const int64_t positions = generator_.engine().config().max_position_embeddings;
  const MeteredText longer = text(5, std::string(static_cast<size_t>(2 * positions), '7'));
  EXPECT_EQ(meter_.tokens(longer), positions);
  const MeteredDivergence found =
      meter_.measure(std::vector{longer}, std::vector<MeteredPair>{{0, many_}})[0];
  EXPECT_EQ(found.finish, Finish::kLength);
  EXPECT_EQ(found.prompt_tokens + found.reply_tokens, positions);
  MeteredText no_room = longer;
  no_room.prompt = longer.reply;
  EXPECT_THAT([&] { (void)meter_.tokens(no_room); },
              testing::ThrowsMessage<InvalidArgument>(Names(5, positions)));
}

TEST_F(EngineDivergenceTest, AScheduleThatDoesNotFitTheModelIsRefused) {
  EXPECT_THROW(meter_.measure(std::vector{text(5, "7")}, std::vector<MeteredPair>{{0, {1, 1}}}),
               InvalidArgument);
}

}  // namespace
}  // namespace allot::worker
