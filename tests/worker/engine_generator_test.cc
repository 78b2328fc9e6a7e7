#include "worker/engine_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/names.h"

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

TEST(EngineGenerator, ACutLeavesTheModelRoomForItsReply) {
  const WideModel model;  // of 1,024 positions, a token a character and BOS
  std::string prompt = "Begin. ";
  for (int i = 0; i < 100; ++i) prompt += "Tom has 3 apples and 4 pears. ";
  prompt += "End.";
  const std::vector<ExpectedText> expected = {{prompt, ""}, {"Tom.", ""}};
  const model::EngineOptions options{.random_weights = 1, .max_sequences = 2};
  GenerationLimits limits{.sampling = {}, .max_new_tokens = 20, .middle_cut = evaluation::MiddleCut()};
  EngineGenerator generator(model.path(), options, limits, model::PromptForm::kText, "", expected);
  EXPECT_EQ(generator.cut_prompts(), 1);
  EXPECT_EQ(generator.engine().options().sequence_tokens, 1024);
  const std::vector<int32_t>& ids = generator.tokenised(prompt);
  EXPECT_EQ(ids.size(), 1004u);
  const std::string asked = generator.tokenizer().decode(ids);
  EXPECT_TRUE(asked.starts_with("Begin. Tom has") && asked.ends_with("pears. End.")) << asked;
  generator.submit({.id = 1, .text = prompt, .samples = {}, .key = {}, .complete = {}, .completing = {}});
  std::vector<evaluation::Reply> replies;
  while (replies.empty()) replies = generator.step();
  EXPECT_EQ(replies[0].prompt_tokens, 1004);
  EXPECT_LE(replies[0].output_tokens, 20);

  limits.middle_cut->tokens = 300;
  EngineGenerator shorter(model.path(), options, limits);
  EXPECT_EQ(shorter.tokenised(prompt).size(), 300u);
  limits.middle_cut = std::nullopt;
  EngineGenerator whole(model.path(), options, limits);
  EXPECT_EQ(whole.tokenised(prompt).size(), prompt.size() + 1);
  EXPECT_EQ(whole.cut_prompts(), 0);
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

// The embedded model itself, whose tokens are characters.
const std::filesystem::path kTinyGsm = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";

evaluation::Prompt choice_of(uint64_t id, const std::string& text,
                             const std::vector<std::string>& continuations) {
  evaluation::Prompt prompt;
  prompt.id = id;
  prompt.text = text;
  prompt.question = 6;
  prompt.continuations = continuations;
  return prompt;
}

// The log-likelihood of `text` after `prompt`, by a pass of its own over both.
double log_likelihood(EngineGenerator* generator, const std::string& prompt, const std::string& text,
                      const std::vector<int32_t>& samples, DrawKey key, uint32_t question) {
  const std::vector<int32_t> before = generator->tokenised(prompt),
                             whole = generator->tokenised(prompt + text);
  const std::vector<float> logits =
      generator->engine().logits(std::span(whole).first(whole.size() - 1), samples, key, question);
  const size_t vocabulary = logits.size() / (whole.size() - 1);
  double sum = 0;
  for (size_t at = before.size(); at < whole.size(); ++at) {
    const float* row = logits.data() + (at - 1) * vocabulary;
    double total = 0;
    for (size_t i = 0; i < vocabulary; ++i) total += std::exp(static_cast<double>(row[i]));
    sum += row[whole[at]] - std::log(total);
  }
  return sum;
}

// What the model replies greedily: the likeliest text, token by token.
std::string greedy_reply(EngineGenerator* generator, const std::string& text) {
  generator->submit(choice_of(1, text, {}));
  while (true)
    for (const evaluation::Reply& reply : generator->step()) return reply.text;
}

TEST(EngineGenerator, OfContinuationsTheMostLikelyIsTheReply) {
  EngineGenerator generator(kTinyGsm, {.dtype = kernels::DType::kFloat32, .max_sequences = 4},
                            {.sampling = {}, .max_new_tokens = 6});
  const std::vector<int32_t> sampled(static_cast<size_t>(generator.engine().config().num_layers), 3);
  int single = 0, several = 0;  // replies of one token, and of more
  uint64_t id = 0;
  for (const std::string text : {"Tom has 3 apples and gets 4. #### ", "Ann buys 2 ", "12 + 1 =", "Zq",
                                 "x x x", "How many? 77 ", "#", "Ben "}) {
    const std::string greedy = greedy_reply(&generator, text);
    for (const size_t length : {2, 4, 6}) {
      for (const std::vector<int32_t>& samples : {std::vector<int32_t>(), sampled}) {
        evaluation::Prompt asked = choice_of(++id, text,
                                             {"q", "0", "e", greedy.substr(0, length), "1", " ", "12",
                                              greedy.substr(0, 1) + "z", "s", "T", "3 pens"});
        asked.samples = samples;
        asked.key = {.run_seed = 4, .sampling_seed = 1};
        generator.submit(asked);
        const std::vector<evaluation::Reply> answered = generator.step();
        ASSERT_EQ(answered.size(), 1u);
        EXPECT_EQ(answered[0].id, id);
        EXPECT_EQ(answered[0].finish, Finish::kStop);
        std::vector<double> likelihoods;
        for (const std::string& continuation : asked.continuations)
          likelihoods.push_back(
              log_likelihood(&generator, text, continuation, samples, asked.key, asked.question));
        const auto best = static_cast<size_t>(std::ranges::max_element(likelihoods) - likelihoods.begin());
        EXPECT_EQ(answered[0].text, asked.continuations[best]) << text;
        const int64_t prompt = std::ssize(generator.tokenised(text));
        EXPECT_EQ(answered[0].prompt_tokens, prompt);
        EXPECT_EQ(answered[0].output_tokens,
                  std::ssize(generator.tokenised(text + asked.continuations[best])) - prompt);
        (answered[0].output_tokens == 1 ? single : several) += 1;
      }
    }
  }
  EXPECT_GT(single, 5);
  EXPECT_GT(several, 5);
  EXPECT_TRUE(generator.step().empty());
}

TEST(EngineGenerator, ThoseOfSeveralTasksShareAnEngineWithRoomForEachAndAnswerAsAlone) {
  const model::EngineOptions options{.dtype = kernels::DType::kFloat32, .max_sequences = 2};
  const std::string text = "Tom has 3 apples and gets 4. How many";
  std::vector<GeneratorTask> tasks(2);
  tasks[0].limits.max_new_tokens = 7;
  tasks[0].expected = {{.prompt = text + std::string(200, 'x'), .reply = ""}};
  tasks[1].limits.max_new_tokens = 3;
  tasks[1].expected = {{.prompt = text, .reply = ""}};
  const auto together = EngineGenerator::for_tasks(kTinyGsm, options, tasks);
  ASSERT_EQ(together.size(), 2u);
  EXPECT_EQ(&together[0]->engine(), &together[1]->engine());
  EXPECT_EQ(together[0]->engine().options().sequence_tokens,
            std::ssize(together[0]->tokenised(tasks[0].expected[0].prompt)) + 7)
      << "of the longer";
  std::vector<std::string> replies;
  for (size_t i = 0; i < tasks.size(); ++i) {
    EngineGenerator alone(kTinyGsm, options, tasks[i].limits);
    replies.push_back(greedy_reply(together[i].get(), text));
    EXPECT_EQ(replies[i], greedy_reply(&alone, text));
  }
  EXPECT_GT(replies[0].size(), replies[1].size());
}

TEST(EngineGenerator, OfEqualContinuationsTheFirstIsTheReplyAndCancelledOnesHaveNone) {
  EngineGenerator generator(kTinyGsm, {.max_sequences = 4}, {});
  generator.submit(choice_of(1, "12 + 1 =", {"3", "4"}));
  generator.submit(choice_of(2, "12 + 1 =", {"é", "ü"}));
  generator.cancel(1);
  const std::vector<evaluation::Reply> answered = generator.step();
  ASSERT_EQ(answered.size(), 1u);
  EXPECT_EQ(answered[0].id, 2u);
  EXPECT_EQ(answered[0].text, "é") << "both are the token of unknown characters";
  EXPECT_TRUE(generator.step().empty());
  generator.submit(choice_of(3, "12 + 1 =", {"3", ""}));
  try {
    (void)generator.step();
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), Names("question 6", "\"\"", "token of its own"));
  }
}

}  // namespace
}  // namespace allot::worker
