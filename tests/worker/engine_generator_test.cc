#include "worker/engine_generator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace allot::worker {
namespace {

// The embedded model's shape and tokenizer, with weights made at random for ten times as many tokens.
class WideModel : public TemporaryDirectory {
 public:
  WideModel() {
    const auto original = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy(original / file, path() / file);
    std::string config = read_file(original / "config.json");
    const std::string rows = "\"vocab_size\": 99";
    config.replace(config.find(rows), rows.size(), "\"vocab_size\": 990");
    write_file_atomically(path() / "config.json", config);
  }
};

TEST(EngineGenerator, TokensThatTheTokenizerLacksStandForNoText) {
  const WideModel model;
  EngineGenerator generator(model.path(), {.random_weights = 1, .max_sequences = 4},
                            {.sampling = {.temperature = 1}, .max_new_tokens = 20});
  int asked = 0;  // whether a reply is complete
  for (uint64_t id = 0; id < 4; ++id) {
    generator.submit({.id = id,
                      .text = "Tom has 3 apples.",
                      .samples = {},
                      .key = {},
                      .question = static_cast<uint32_t>(id),
                      .complete =
                          [&](std::string_view) {
                            ++asked;
                            return false;
                          },
                      .completing = "abcdefghijklmnopqrstuvwxyz0123456789 "});
  }
  std::vector<evaluation::Reply> replies;
  while (replies.size() < 4) {
    for (evaluation::Reply& reply : generator.step()) replies.push_back(std::move(reply));
  }
  EXPECT_GT(asked, 0);
  for (const evaluation::Reply& reply : replies) {
    EXPECT_EQ(reply.output_tokens, 20);
    EXPECT_LT(reply.text.size(), 20u) << "nine of ten tokens have no text; those that have are one character";
  }
}

TEST(EngineGenerator, ExpectedTextsSayHowMuchRoomTheCacheNeeds) {
  const WideModel model;
  const model::EngineOptions options{.random_weights = 1, .max_sequences = 4};
  const GenerationLimits limits{.sampling = {}, .max_new_tokens = 20};
  const auto sequence_tokens = [&](std::span<const ExpectedText> expected) {
    return EngineGenerator(model.path(), options, limits, model::PromptForm::kText, "", expected)
        .engine()
        .options()
        .sequence_tokens;
  };
  EXPECT_EQ(sequence_tokens({}), std::nullopt);

  EngineGenerator alone(model.path(), options, limits);
  const int64_t question = std::ssize(alone.tokenised("Tom has 3 apples."));
  const std::vector<ExpectedText> short_solutions = {{"Tom has 3 apples.", "3"}, {"Tom.", "3"}};
  EXPECT_EQ(sequence_tokens(short_solutions), question + 20);
  std::string solution;
  for (int i = 0; i < 30; ++i) solution += "Tom has 3 apples. ";
  const int64_t tokens = std::ssize(alone.tokenizer().encode(solution, false));
  ASSERT_GT(tokens, 20);
  const std::vector<ExpectedText> long_solution = {{"Tom has 3 apples.", ""},
                                                   {"Tom has 3 apples.", solution}};
  EXPECT_EQ(sequence_tokens(long_solution), question + tokens);
}

TEST(EngineGenerator, AnswersALongerPromptThanWasExpected) {
  const WideModel model;
  const std::vector<ExpectedText> expected = {{"Tom.", ""}};
  EngineGenerator generator(model.path(), {.random_weights = 1, .max_sequences = 2},
                            {.sampling = {}, .max_new_tokens = 3}, model::PromptForm::kText, "", expected);
  std::string prompt;
  for (int i = 0; i < 8; ++i) prompt += "Tom has 3 apples. ";
  for (uint64_t id = 0; id < 2; ++id)
    generator.submit({.id = id,
                      .text = prompt,
                      .samples = {},
                      .key = {},
                      .question = 0,
                      .complete = {},
                      .completing = {}});
  int replies = 0;
  while (replies < 2) replies += static_cast<int>(generator.step().size());
  EXPECT_EQ(replies, 2);
}

}  // namespace
}  // namespace allot::worker
