// Passes that are submitted before the tokens of the one before are known, against one pass at a time: the
// same replies, whatever ends a sequence, joins or leaves meanwhile.
#include "model/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/error.h"
#include "tests/model/checkpoints.h"
#include "tests/model/delayed_backend.h"
#include "tests/model/generate.h"
#include "tests/model/replies.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

class TwoPasses : public testing::Test {
 protected:
  std::map<uint64_t, Reply> one_at_a_time(const std::vector<GenerationRequest>& requests) {
    Engine engine(kLlamaGroup4, small_engine());
    return run(engine, requests);
  }
  DelayedPasses passes;
};

TEST_F(TwoPasses, AreSubmittedBeforeTheFirstIsTakenAndNoMoreThanThat) {
  Engine engine(kLlamaGroup4, small_engine(), delayed(&passes));
  engine.submit(request_of(0, random_prompt(0, 5), 4));
  EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_EQ(passes.calls, "osst");
  EXPECT_THAT(run_to_end(engine), SizeIs(1));
  EXPECT_EQ(passes.calls, "osstststt") << "the last one is submitted alone: the length is known";
  EXPECT_EQ(passes.fed, 3);
}

TEST_F(TwoPasses, GiveTheRepliesOfOneAtATime) {
  const std::vector<GenerationRequest> requests = mixed_requests(40);
  const auto expected = one_at_a_time(requests);
  std::map<Finish, int> finishes;
  for (const auto& [id, reply] : expected) ++finishes[reply.finish];
  ASSERT_THAT(finishes, SizeIs(3)) << "some end does not occur; the test proves less than it says";
  struct Case {
    const char* what;
    int32_t max_sequences, prefill_chunk_tokens, page_size;
    int64_t cache_tokens;
  };
  for (const Case& of :
       {Case{"all at once", 64, 2048, 16, 8192}, Case{"one slot", 1, 2048, 16, 8192},
        Case{"few slots", 3, 2048, 16, 8192}, Case{"small chunks", 64, 13, 16, 8192},
        Case{"pages of one token", 5, 64, 1, 8192}, Case{"a cache for two or three", 64, 2048, 8, 256}}) {
    SCOPED_TRACE(of.what);
    EngineOptions options = small_engine();
    options.max_sequences = of.max_sequences;
    options.prefill_chunk_tokens = of.prefill_chunk_tokens;
    options.page_size = of.page_size;
    options.cache_tokens = of.cache_tokens;
    Engine engine(kLlamaGroup4, options, delayed(&passes));
    EXPECT_EQ(run(engine, requests), expected);
    EXPECT_GT(passes.fed, 100) << "few tokens went from pass to pass";
    // Nothing stays behind: all of it once more.
    EXPECT_EQ(run(engine, requests), expected);
  }
}

TEST_F(TwoPasses, EndAReplyAtEveryPlaceItsStopNames) {
  const std::vector<int32_t> prompt = random_prompt(3, 9);
  const auto whole = one_at_a_time({request_of(0, prompt, 12)}).at(0).tokens;
  for (size_t length = 1; length <= 12; ++length) {
    Engine engine(kLlamaGroup4, small_engine(), delayed(&passes));
    std::vector<std::vector<int32_t>> asked;
    GenerationRequest request = request_of(0, prompt, 12);
    request.stop = [&](std::span<const int32_t> output) {
      asked.emplace_back(output.begin(), output.end());
      return output.size() == length;
    };
    engine.submit(request);
    engine.submit(request_of(1, random_prompt(4, 30), 12));
    const auto replies = replies_of(run_to_end(engine));
    EXPECT_EQ(replies.at(0).tokens, std::vector(whole.begin(), whole.begin() + length));
    EXPECT_EQ(replies.at(0).finish, Finish::kStop);
    EXPECT_THAT(replies.at(1).tokens, SizeIs(12));
    ASSERT_THAT(asked, SizeIs(length));
    for (size_t i = 0; i < length; ++i)
      EXPECT_EQ(asked[i], std::vector(whole.begin(), whole.begin() + i + 1));
  }
}

// The row in vain is the only one more, and a sequence that ends by its length has none.
TEST_F(TwoPasses, ChooseOneTokenInVainWhereAStopIsNotTheLastToken) {
  EngineOptions options = small_engine();
  options.page_size = 8;
  options.cache_tokens = 24;  // the whole of it is of the request
  for (const size_t stop_at : {1, 6, 9, 10, 99}) {
    passes = {};
    Engine engine(kLlamaGroup4, options, delayed(&passes));
    GenerationRequest request = request_of(0, random_prompt(0, 14), 10);
    request.stop = [stop_at](std::span<const int32_t> output) { return output.size() == stop_at; };
    const auto reply = run(engine, {request}).at(0);
    const auto made = std::ssize(reply.tokens);
    EXPECT_EQ(made, std::min<int64_t>(stop_at, 10));
    EXPECT_THAT(engine.step(), IsEmpty());  // takes the pass that nobody waits for
    EXPECT_EQ(passes.chosen, made + (made < 10 ? 1 : 0)) << stop_at;
    EXPECT_EQ(engine.counters().decode_tokens, made - 1) << "tokens in vain are counted";
    EXPECT_EQ(engine.counters().prefill_tokens, 14);
  }
}

TEST_F(TwoPasses, GiveSlotAndPagesToTheNextWhileTheRowInVainRuns) {
  EngineOptions options = small_engine();
  options.max_sequences = 1;
  options.cache_tokens = 64;  // the whole of it is of each request
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  GenerationRequest stopped = request_of(0, random_prompt(0, 40), 24);
  stopped.stop = [](std::span<const int32_t> output) { return output.size() == 3; };
  const GenerationRequest next = request_of(1, random_prompt(1, 40), 24);
  engine.submit(stopped);
  engine.submit(next);
  for (int step = 0; step < 2; ++step) EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_THAT(engine.step(), SizeIs(1));
  passes.calls.clear();
  EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_EQ(passes.calls, "ost") << "the next one is admitted before the row in vain is taken";
  EXPECT_EQ(replies_of(run_to_end(engine)).at(1), one_at_a_time({next}).at(1));
}

// A penalty that rules out whatever was seen: the token in vain of the last sequence would show.
TEST_F(TwoPasses, LeaveNothingSeenInTheSlotOfASequenceThatStopped) {
  EngineOptions options = small_engine();
  options.max_sequences = 1;
  const auto request = [](uint64_t id, size_t stop_at) {
    GenerationRequest made = request_of(id, random_prompt(4, 12), 30);
    made.sampling.repetition_penalty = 1e6;
    made.stop = [stop_at](std::span<const int32_t> output) { return output.size() == stop_at; };
    return made;
  };
  const auto expected = one_at_a_time({request(0, 99)}).at(0).tokens;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < 12; ++i) requests.push_back(request(i, 2 + i));
  for (const auto& [id, reply] : run(engine, requests)) {
    EXPECT_EQ(reply.tokens, std::vector(expected.begin(), expected.begin() + 2 + id)) << id;
  }
}

TEST_F(TwoPasses, TakeRequestsThatComeWhileTheyRun) {
  const std::vector<GenerationRequest> requests = mixed_requests(30);
  const auto expected = one_at_a_time(requests);
  for (const int32_t slots : {2, 8}) {
    for (const size_t every : {1, 3}) {
      EngineOptions options = small_engine();
      options.max_sequences = slots;
      Engine engine(kLlamaGroup4, options, delayed(&passes));
      std::vector<GenerationResult> results;
      for (size_t step = 0, next = 0; next < requests.size() || engine.pending() > 0; ++step) {
        if (step % every == 0 && next < requests.size()) engine.submit(requests[next++]);
        std::ranges::move(engine.step(), std::back_inserter(results));
      }
      EXPECT_EQ(replies_of(results), expected) << slots << " slots, a request every " << every << " steps";
    }
  }
}

TEST_F(TwoPasses, AreLeftByCancelledSequencesWhoseSlotsAndPagesGoToTheNext) {
  const std::vector<GenerationRequest> requests = unstopped_requests(12, 19);
  const auto expected = one_at_a_time(requests);
  for (int at = 1; at < 12; ++at) {
    EngineOptions options = small_engine();
    options.max_sequences = 3;
    options.prefill_chunk_tokens = 20;  // some are cancelled with half a prompt in a pass
    Engine engine(kLlamaGroup4, options, delayed(&passes));
    for (const GenerationRequest& request : requests) engine.submit(request);
    std::vector<GenerationResult> results;
    for (int step = 0; engine.pending() > 0; ++step) {
      if (step == at) {
        for (const uint64_t id : {0, 2, 7}) EXPECT_TRUE(engine.cancel(id));
        EXPECT_FALSE(engine.cancel(2));
        EXPECT_EQ(engine.pending(), 9);
      }
      std::ranges::move(engine.step(), std::back_inserter(results));
    }
    const auto replies = replies_of(results);
    ASSERT_THAT(replies, SizeIs(9)) << at;
    for (const auto& [id, reply] : replies) EXPECT_EQ(reply, expected.at(id)) << id << " at step " << at;
  }
}

TEST_F(TwoPasses, HoldAPassOfNobodyUntilTheNextRequestAndGiveItsPagesBack) {
  EngineOptions options = small_engine();
  options.max_sequences = 1;
  options.cache_tokens = 64;
  const GenerationRequest whole = request_of(1, random_prompt(1, 40), 24);  // the whole cache
  const auto expected = one_at_a_time({whole}).at(1);
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  engine.submit(whole);
  (void)engine.step();
  EXPECT_TRUE(engine.cancel(1));
  EXPECT_EQ(engine.pending(), 0);
  EXPECT_THAT(engine.step(), IsEmpty());
  EXPECT_EQ(std::ranges::count(passes.calls, 's'), std::ranges::count(passes.calls, 't'));
  EXPECT_EQ(run(engine, {whole}).at(1), expected);
}

TEST_F(TwoPasses, LetLogitsAndFidelityBeAskedForBetweenThem) {
  const std::vector<GenerationRequest> requests = mixed_requests(9);
  const auto expected = one_at_a_time(requests);
  Engine fresh(kLlamaGroup4, small_engine());
  const std::vector<int32_t> ids = random_prompt(7, 60);
  const std::vector<float> logits = fresh.logits(ids, {}, kKey, 0);
  const FidelityText text{.ids = ids, .prompt_tokens = 20, .key = kKey, .question = 5};
  const FidelityPair pair{.text = 0, .samples = {4, 4}};
  const auto divergence = fresh.fidelity({&text, 1}, {&pair, 1}, {}).at(0).divergence;
  EngineOptions options = small_engine();
  options.max_sequences = 4;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  for (const GenerationRequest& request : requests) engine.submit(request);
  std::vector<GenerationResult> results;
  while (engine.pending() > 0) {
    std::ranges::move(engine.step(), std::back_inserter(results));
    EXPECT_EQ(engine.logits(ids, {}, kKey, 0), logits);
    EXPECT_EQ(engine.fidelity({&text, 1}, {&pair, 1}, {}).at(0).divergence, divergence);
  }
  EXPECT_EQ(replies_of(results), expected);
}

// --- Passes that fail

class FailingPasses : public TwoPasses {
 protected:
  // Takes the token from the choice of `question` at `position`, `times` times.
  void fail(uint32_t question, uint32_t position, int times) {
    passes.report = [=](const TokenChoice& choice, int32_t token) mutable {
      if (choice.draws.question != question || choice.position != position || times == 0) return token;
      --times;
      return -1;
    };
  }
  static std::vector<GenerationRequest> requests() {
    std::vector<GenerationRequest> made;
    for (uint32_t i = 0; i < 3; ++i) {
      made.push_back(request_of(i, random_prompt(i, 6), 10));
      made.back().question = i;
      made.back().sampling.repetition_penalty = 1e6;  // what a slot has seen shows
    }
    return made;
  }
};

TEST_F(FailingPasses, ThrowAndLeaveEverySequenceAsItWasBefore) {
  const auto expected = one_at_a_time(requests());
  for (uint32_t position = 5; position <= 14; ++position) {
    fail(1, position, 2);
    Engine engine(kLlamaGroup4, small_engine(), delayed(&passes));
    for (const GenerationRequest& request : requests()) engine.submit(request);
    std::vector<GenerationResult> results;
    int thrown = 0;
    while (engine.pending() > 0) {
      try {
        std::ranges::move(engine.step(), std::back_inserter(results));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), Names("logit"));
        ++thrown;
      }
    }
    EXPECT_EQ(thrown, 2);
    EXPECT_EQ(replies_of(results), expected) << position;
  }
}

TEST_F(FailingPasses, GoOnWithoutTheSequenceThatFailsOnceItIsCancelled) {
  const auto expected = one_at_a_time(requests());
  fail(1, 8, 1000);
  EngineOptions options = small_engine();
  options.max_sequences = 2;
  Engine engine(kLlamaGroup4, options, delayed(&passes));
  for (const GenerationRequest& request : requests()) engine.submit(request);
  for (int step = 0; step < 3; ++step) EXPECT_THAT(engine.step(), IsEmpty());
  for (int step = 0; step < 2; ++step)
    EXPECT_THAT([&] { (void)engine.step(); }, ThrowsMessage<Error>(Names("logit")));
  EXPECT_TRUE(engine.cancel(1));
  const auto replies = replies_of(run_to_end(engine));
  ASSERT_THAT(replies, SizeIs(2));
  EXPECT_EQ(replies.at(0), expected.at(0));
  EXPECT_EQ(replies.at(2), expected.at(2));
}

// The reply ends with its third token; what the row in vain gives is nobody's.
TEST_F(FailingPasses, DoNotThrowForATokenInVain) {
  fail(0, 8, 1000);
  Engine engine(kLlamaGroup4, small_engine(), delayed(&passes));
  std::vector<GenerationRequest> all = requests();
  all[0].stop = [](std::span<const int32_t> output) { return output.size() == 3; };
  const auto expected = one_at_a_time(all);
  EXPECT_EQ(run(engine, all), expected);
}

}  // namespace
}  // namespace allot::model
