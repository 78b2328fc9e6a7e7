#include "bench/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "tests/model/checkpoints.h"
#include "tests/model/delayed_backend.h"
#include "tests/model/generate.h"

namespace allot::bench {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const ArrivalWorkload kWorkload{.replies = 3,
                                .reply_prompt_tokens = 6,
                                .reply_tokens = 40,
                                .arrivals = 4,
                                .prompt_tokens = {50, 90},
                                .every_seconds = 0.001,
                                .answer_tokens = 2,
                                .samples = {}};

TEST(Arrivals, CountEveryTokenAfterTheFirstOfEachReplyAndAllOfThePromptsThatCome) {
  model::EngineOptions options = model::small_engine();
  options.max_sequences = most_sequences(kWorkload);
  options.chunked_prefill_tokens = 16;
  options.cache_tokens = cache_tokens(kWorkload, options);
  model::DelayedPasses passes;
  model::Engine engine(model::kLlamaGroup4, options, model::delayed(&passes));
  const ArrivalTiming timing = time_arrivals(engine, kWorkload);
  EXPECT_EQ(engine.pending(), 0);
  EXPECT_THAT(timing.between, SizeIs(3 * 40));
  EXPECT_THAT(timing.between, Each(Gt(0)));
  EXPECT_EQ(timing.new_tokens, static_cast<int64_t>(timing.between.size()) + 4 * 2);
  EXPECT_EQ(timing.prompt_tokens, 50 + 90 + 50 + 90);
  ASSERT_THAT(timing.first_tokens, SizeIs(4));
  EXPECT_THAT(timing.first_tokens, Each(Gt(0)));
  EXPECT_GT(timing.seconds, 4 * kWorkload.every_seconds);
}

TEST(Arrivals, PromptsComeWhileTheRepliesRun) {
  model::EngineOptions options = model::small_engine();
  options.max_sequences = most_sequences(kWorkload);
  options.cache_tokens = cache_tokens(kWorkload, options);
  model::DelayedPasses passes;
  std::string log;  // r for a decode step of replies, p for a prompt that came, s for anything else
  passes.submits = [&](const model::ForwardBatch& batch, std::span<const model::TokenChoice> choices) {
    const bool of_replies = std::ssize(choices) == batch.num_tokens() && choices[0].draws.question < 3;
    log += of_replies ? 'r' : batch.num_tokens() >= 50 ? 'p' : 's';
  };
  model::Engine engine(model::kLlamaGroup4, options, model::delayed(&passes));
  ArrivalWorkload soon = kWorkload;
  soon.every_seconds = 0;
  (void)time_arrivals(engine, soon);
  EXPECT_THAT(log, HasSubstr("rpr"));
}

}  // namespace
}  // namespace allot::bench
