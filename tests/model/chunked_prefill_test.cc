// Prompts that are computed in chunks beside replies that are decoded: how long a reply waits for its next
// token, that everything ends, and that no reply is another one for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/scheduler.h"
#include "tests/kernels/methods.h"
#include "tests/message_of.h"
#include "tests/model/checkpoints.h"
#include "tests/model/delayed_backend.h"
#include "tests/model/generate.h"
#include "tests/model/replies.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::IsEmpty;

// What passes do, as they are submitted. Questions are of one request each.
class PassLog {
 public:
  void operator()(const ForwardBatch& batch, std::span<const TokenChoice> choices) {
    // A decode step has one token of each sequence, and each of these has had a token chosen before.
    bool decodes = batch.num_tokens() == std::ssize(choices);
    for (const TokenChoice& choice : choices)
      decodes = decodes && prompt_tokens_at_token_.contains(choice.draws.question);
    EXPECT_TRUE(decodes ||
                std::ranges::none_of(choices,
                                     [&](const TokenChoice& choice) {
                                       return prompt_tokens_at_token_.contains(choice.draws.question);
                                     }))
        << "a pass of prompts holds a reply that is decoded";
    passes += decodes ? "d" : std::to_string(batch.num_tokens());
    passes += ' ';
    for (const TokenChoice& choice : choices) {
      if (!decodes) continue;
      longest_wait =
          std::max(longest_wait, prompt_tokens_ - prompt_tokens_at_token_.at(choice.draws.question));
    }
    if (!decodes) prompt_tokens_ += batch.num_tokens();
    for (const TokenChoice& choice : choices) prompt_tokens_at_token_[choice.draws.question] = prompt_tokens_;
  }

  std::string passes;        // "d " for a decode step, else the tokens of prompts
  int64_t longest_wait = 0;  // most tokens of prompts between two tokens of a reply

 private:
  int64_t prompt_tokens_ = 0;
  std::map<uint32_t, int64_t> prompt_tokens_at_token_;  // by question
};

GenerationRequest question(uint32_t number, size_t prompt_tokens, int32_t new_tokens) {
  GenerationRequest request = request_of(number, random_prompt(number, prompt_tokens), new_tokens);
  request.question = number;
  return request;
}

class ChunkedPrefill : public testing::Test {
 protected:
  static EngineOptions in_chunks(std::optional<int32_t> tokens) {
    EngineOptions options = small_engine();
    options.chunked_prefill_tokens = tokens;
    return options;
  }
  // Takes the log of what is submitted from here on.
  void watch(PassLog* log) {
    passes.submits = [log](const ForwardBatch& batch, std::span<const TokenChoice> choices) {
      (*log)(batch, choices);
    };
  }
  DelayedPasses passes;
};

TEST_F(ChunkedPrefill, APromptTakesTurnsWithTheRepliesThatAreDecoded) {
  PassLog log;
  watch(&log);
  Engine engine(kLlamaGroup4, in_chunks(8), delayed(&passes));
  engine.submit(question(0, 5, 9));
  EXPECT_THAT(engine.step(), IsEmpty());
  engine.submit(question(1, 27, 3));
  (void)run_to_end(engine);
  // The last chunk has the token more that would be left alone, so that a prompt of 27 = 8 + 8 + 8 + 3.
  EXPECT_EQ(log.passes, "5 d 8 d 8 d 8 d 3 d d d d ");
}

TEST_F(ChunkedPrefill, WithoutItPromptsGoFirstAndRepliesWait) {
  PassLog log;
  watch(&log);
  EngineOptions options = in_chunks(std::nullopt);
  options.prefill_chunk_tokens = 8;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  engine.submit(question(0, 5, 9));
  EXPECT_THAT(engine.step(), IsEmpty());
  engine.submit(question(1, 27, 3));
  (void)run_to_end(engine);
  EXPECT_EQ(log.passes, "5 d 8 8 8 3 d d d d d d d ");
}

TEST_F(ChunkedPrefill, PassesOfPromptsAreWholeWhileNothingIsDecoded) {
  PassLog log;
  watch(&log);
  EngineOptions options = in_chunks(8);
  options.prefill_chunk_tokens = 64;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  for (uint32_t i = 0; i < 3; ++i) engine.submit(question(i, 50, i == 0 ? 5 : 1));
  (void)run_to_end(engine);
  // The first pass has one prompt and a part of the second. Chunks come only until the first one's reply has
  // ended; the 62 tokens that are left then have one pass.
  EXPECT_EQ(log.passes, "64 d 8 d 8 d 8 d 62 ");
  EXPECT_LE(log.longest_wait, 9);
}

// Whatever comes and when: between two tokens of a reply lie at most the option's tokens of prompts, or one
// more.
TEST_F(ChunkedPrefill, NoReplyWaitsForMoreThanItsBoundHoweverManyPromptsCome) {
  for (const int32_t bound : {2, 7, 16, 40}) {
    PassLog log;
    watch(&log);
    EngineOptions options = in_chunks(bound);
    options.max_sequences = 12;
    Engine engine(kLlamaGroup4, options, delayed(&passes));
    std::vector<GenerationRequest> requests;
    for (uint32_t i = 0; i < 40; ++i)
      requests.push_back(
          question(i, 1 + (i % 5 == 0 ? 300 : (37 * i) % 90), static_cast<int32_t>(2 + (7 * i) % 60)));
    std::vector<GenerationResult> results;
    for (size_t step = 0, next = 0; next < requests.size() || engine.pending() > 0; ++step) {
      if (step % 3 == 0 && next < requests.size()) engine.submit(requests[next++]);
      std::ranges::move(engine.step(), std::back_inserter(results));
    }
    EXPECT_EQ(std::ssize(results), 40) << bound;
    EXPECT_LE(log.longest_wait, bound + 1);
    EXPECT_GE(log.longest_wait, bound) << "prompts are not cut; the test proves less than it says";
  }
}

// Prompts come faster than they can be computed, one with every pass. A long one that comes first has its
// first token after as many pairs of passes as it has chunks, and a reply goes on all the while.
TEST_F(ChunkedPrefill, AStreamOfPromptsStarvesNeitherALongPromptNorAReply) {
  constexpr int32_t kBound = 16, kLong = 320;
  EngineOptions options = in_chunks(kBound);
  options.cache_tokens = 16384;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  std::vector<int64_t> reply_at, long_at;  // the steps with a token of each
  int64_t step = 0;
  GenerationRequest reply = question(0, 4, 60), long_one = question(1, kLong, 3);
  reply.stop = [&](std::span<const int32_t>) { return reply_at.push_back(step), false; };
  long_one.stop = [&](std::span<const int32_t>) { return long_at.push_back(step), false; };
  engine.submit(reply);
  for (; step < 4; ++step) (void)engine.step();
  engine.submit(long_one);
  const int64_t came = step;
  for (uint32_t next = 2; step < 200; ++step) {
    engine.submit(question(next++, 30, 2));
    (void)engine.step();
  }
  ASSERT_EQ(std::ssize(long_at), 3);
  EXPECT_LE(long_at.front(), came + 2 * (kLong / kBound) + 2);
  ASSERT_EQ(std::ssize(reply_at), 60);
  for (size_t i = 1; i < reply_at.size(); ++i) EXPECT_LE(reply_at[i], reply_at[i - 1] + 2) << i;
}

TEST_F(ChunkedPrefill, RepliesAreThoseOfPromptsAtOnce) {
  const std::vector<GenerationRequest> requests = mixed_requests(40);
  Engine whole(kLlamaGroup4, small_engine());
  const auto expected = run(whole, requests);
  for (const int32_t bound : {2, 3, 13, 64}) {
    for (const int32_t slots : {3, 64}) {
      SCOPED_TRACE(testing::Message() << bound << " tokens, " << slots << " slots");
      EngineOptions options = in_chunks(bound);
      options.max_sequences = slots;
      Engine ahead(kLlamaGroup4, options, delayed(&passes)), one_at_a_time(kLlamaGroup4, options);
      EXPECT_EQ(run(ahead, requests), expected);
      EXPECT_EQ(run(one_at_a_time, requests), expected);
    }
  }
}

TEST_F(ChunkedPrefill, CancelledPromptsLeaveTheirTurnToTheNext) {
  const std::vector<GenerationRequest> requests = unstopped_requests(12, 19);
  Engine whole(kLlamaGroup4, small_engine());
  const auto expected = run(whole, requests);
  for (int at = 1; at < 14; ++at) {
    EngineOptions options = in_chunks(5);
    options.max_sequences = 3;
    Engine engine(kLlamaGroup4, options, delayed(&passes));
    for (const GenerationRequest& request : requests) engine.submit(request);
    std::vector<GenerationResult> results;
    for (int step = 0; engine.pending() > 0; ++step) {
      if (step == at) {
        for (const uint64_t id : {1, 2, 7}) EXPECT_TRUE(engine.cancel(id));
      }
      std::ranges::move(engine.step(), std::back_inserter(results));
    }
    const auto replies = replies_of(results);
    ASSERT_EQ(std::ssize(replies), 9) << at;
    for (const auto& [id, reply] : replies) EXPECT_EQ(reply, expected.at(id)) << id << " at step " << at;
  }
}

// A token that is not a number, in a prompt's last chunk or in a reply: what was submitted behind it is taken
// back, and the turns go on from there.
TEST_F(ChunkedPrefill, APassThatFailsIsRepeatedInItsTurn) {
  const auto requests = [] {
    std::vector<GenerationRequest> made;
    for (uint32_t i = 0; i < 3; ++i) {
      made.push_back(question(i, 6 + 20 * i, i == 0 ? 40 : 12));
      made.back().sampling.repetition_penalty = 1e6;  // what a slot has seen shows
    }
    return made;
  };
  Engine whole(kLlamaGroup4, small_engine());
  const auto expected = run(whole, requests());
  int repeated = 0;
  for (const size_t at_once : {1, 2}) {
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t failing = 1 + i % 2, after = i / 2;
      int times = 2;
      passes = {};
      passes.at_once = static_cast<int32_t>(at_once);
      passes.report = [&](const TokenChoice& choice, int32_t token) {
        if (choice.draws.question != failing || choice.position != 5 + 20 * failing + after || times <= 0)
          return token;
        --times;
        return -1;
      };
      std::vector<std::vector<int32_t>> positions;  // of each pass
      passes.submits = [&](const ForwardBatch& batch, std::span<const TokenChoice>) {
        positions.push_back(batch.positions);
      };
      Engine engine(kLlamaGroup4, in_chunks(6), delayed(&passes));
      const std::vector<GenerationRequest> all = requests();
      engine.submit(all[0]);
      std::vector<GenerationResult> results = engine.step();
      engine.submit(all[1]);
      engine.submit(all[2]);
      int thrown = 0;
      while (engine.pending() > 0) {
        const size_t before = positions.size();
        try {
          std::ranges::move(engine.step(), std::back_inserter(results));
          if (thrown > 0 && times == 0 && positions.size() == before + at_once) {
            for (size_t pass = before; pass < before + at_once; ++pass)
              EXPECT_EQ(positions[pass], positions[pass - at_once])
                  << "another pass than the one that failed";
            ++repeated;
            times = -1;
          }
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), Names("logit"));
          ++thrown;
        }
      }
      EXPECT_EQ(thrown, 2);
      EXPECT_EQ(replies_of(results), expected) << "question " << failing << ", token " << after;
    }
  }
  EXPECT_EQ(repeated, 32);
}

TEST_F(ChunkedPrefill, BoundsThatAPassCannotHaveAreRefusedWithTheNumbers) {
  EngineOptions options = small_engine();
  options.prefill_chunk_tokens = 100;
  for (const int32_t bound : {-3, 0, 1, 101}) {
    options.chunked_prefill_tokens = bound;
    EXPECT_THAT(message_of<InvalidArgument>([&] { Engine(kLlamaGroup4, options); }),
                Names("chunked_prefill_tokens", bound, bound > 100 ? 100 : 2));
  }
  for (const int32_t bound : {2, 100}) {
    options.chunked_prefill_tokens = bound;
    EXPECT_NO_THROW(Engine(kLlamaGroup4, options));
  }
}

// --- Every estimator: chunks of a prompt behind keys that were read by sampled attention, and decode steps
// between them.

class ChunkedPrefillMethod : public testing::TestWithParam<kernels::AttentionMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, ChunkedPrefillMethod, testing::ValuesIn(kernels::testing::every_method()),
                         kernels::testing::method_name);

TEST_P(ChunkedPrefillMethod, GivesTheRepliesOfPromptsAtOnce) {
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 9; ++i) {
    requests.push_back(question(i, 1 + (i == 4 ? 250 : (53 * i) % 110), 12));
    if (i % 4 != 3) requests.back().samples = {8, 9};
    requests.back().key = kKey;
    requests.back().sampling = kDrawn;
  }
  EngineOptions options = small_engine();
  options.attention = GetParam();
  options.threads = 2;
  Engine whole(kLlamaGroup4, options);
  const auto expected = run(whole, requests);
  for (const int32_t bound : {17, 64}) {
    options.chunked_prefill_tokens = bound;
    Engine engine(kLlamaGroup4, options);
    EXPECT_EQ(run(engine, requests), expected) << bound;
  }
}

}  // namespace
}  // namespace allot::model
