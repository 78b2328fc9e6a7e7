// Requests that join and leave a running batch.
#include "app/serve/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/error.h"
#include "tests/app/serve/fake_engine.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using namespace std::chrono_literals;

struct Whole {
  std::string text;
  ReplyPart last;
};

Whole whole(PendingReply* reply) {
  Whole all;
  do {
    all.last = reply->take(10s);
    all.text += all.last.text;
  } while (!all.last.ended);
  return all;
}

class BatcherTest : public ::testing::Test {
 protected:
  Batcher& batcher(int64_t most_requests = 512) {
    if (!batcher_)
      batcher_.emplace(std::make_unique<FakeEngine>(&state_), tokenizer_,
                       Batcher::Options{.most_requests = most_requests});
    return *batcher_;
  }
  ~BatcherTest() override { state_.let_go(); }

  // What `ask` gives while the held engine makes one step after another: the batcher takes and gives between
  // steps.
  template <class Ask>
  auto stepping(const Ask& ask) {
    auto asked = std::async(std::launch::async, ask);
    while (asked.wait_for(1ms) != std::future_status::ready) state_.allow(1);
    return asked.get();
  }

  static model::GenerationRequest request(int32_t first, int32_t tokens, uint32_t seed = 0) {
    model::GenerationRequest made;
    made.prompt = {first, 12, 13};
    made.key = {.run_seed = 3, .sampling_seed = seed};
    made.max_new_tokens = tokens;
    return made;
  }

  FakeEngineState state_;
  model::Tokenizer tokenizer_ = embedded_tokenizer();
  std::optional<Batcher> batcher_;
};

TEST_F(BatcherTest, ARequestThatJoinsARunningBatchEndsBeforeItsMateAndBothHaveTheTextThatTheyHaveAlone) {
  state_.allow(5);
  const auto early = batcher().submit(request(20, 390), {});
  while (state_.steps < 4) std::this_thread::yield();  // the batch runs
  const auto late = stepping([&] { return batcher_->submit(request(30, 3), {}); });
  const Whole of_late = stepping([&] { return whole(late.get()); });
  EXPECT_EQ(of_late.text, text_alone(tokenizer_, request(30, 3)));
  EXPECT_EQ(of_late.last.output_tokens, 3);
  EXPECT_EQ(of_late.last.finish, Finish::kLength);
  EXPECT_EQ(state_.most_together, 2);
  EXPECT_EQ(batcher().counters().running, 1) << "the early one goes on";
  state_.let_go();
  EXPECT_EQ(whole(early.get()).text, text_alone(tokenizer_, request(20, 390)));
  EXPECT_EQ(batcher().counters().running, 0);
}

TEST_F(BatcherTest, ManyThreadsGetTheRepliesThatTheirRequestsGetAlone) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  batcher();
  for (int32_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t i = 0; i < 25; ++i) {
        const auto asked = request(20 + thread, 1 + (i * 7 + thread) % 23, static_cast<uint32_t>(i));
        const auto reply = batcher_->submit(asked, {});
        wrong += whole(reply.get()).text != text_alone(tokenizer_, asked);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const BatcherCounters counters = batcher().counters();
  EXPECT_EQ(counters.accepted, 200);
  EXPECT_EQ(counters.finished, 200);
  EXPECT_EQ(counters.prompt_tokens, 600);
  EXPECT_EQ(counters.running, 0);
}

TEST_F(BatcherTest, AStopStringEndsTheReplyBeforeItInTheSameStep) {
  const auto asked = request(20, 40);
  const std::string alone = text_alone(tokenizer_, asked);
  const std::string stop = alone.substr(10, 3);
  const auto reply = batcher().submit(asked, {"not there", stop});
  const Whole all = whole(reply.get());
  EXPECT_EQ(all.text, alone.substr(0, alone.find(stop)));
  EXPECT_EQ(all.last.finish, Finish::kStop);
  EXPECT_EQ(all.last.output_tokens, static_cast<int32_t>(alone.find(stop) + stop.size()))
      << "a token is a character here";
}

TEST_F(BatcherTest, ACancelledRequestLeavesTheBatchAndItsMateGoesOn) {
  state_.allow(2);
  const auto one = batcher().submit(request(20, 390), {});
  const auto other = stepping([&] { return batcher_->submit(request(21, 50), {}); });
  batcher().cancel(*one);
  state_.let_go();
  EXPECT_EQ(whole(other.get()).text, text_alone(tokenizer_, request(21, 50)));
  const BatcherCounters counters = batcher().counters();
  EXPECT_EQ(counters.cancelled, 1);
  EXPECT_EQ(counters.running, 0);
  EXPECT_EQ(state_.cancelled, 1);
  EXPECT_LT(state_.steps, 390);
  batcher().cancel(*other);  // it ended: nothing to do
}

TEST_F(BatcherTest, ARequestThatTheEngineRefusesHarmsNoOther) {
  const auto good = batcher().submit(request(20, 30), {});
  EXPECT_THAT(message_of<InvalidArgument>([&] { batcher().submit(request(98, 3), {}); }), Names(98));
  EXPECT_EQ(whole(good.get()).text, text_alone(tokenizer_, request(20, 30)));
  EXPECT_EQ(batcher().counters().refused, 1);
}

TEST_F(BatcherTest, BeyondTheLimitRequestsAreRefusedUntilOneEnds) {
  state_.allow(2);
  batcher(2);
  const auto one = batcher().submit(request(20, 390), {});
  const auto two = stepping([&] { return batcher_->submit(request(21, 390), {}); });
  EXPECT_THAT(message_of<TooManyRequests>([&] { batcher().submit(request(22, 5), {}); }), Names(2));
  state_.let_go();
  whole(one.get());
  whole(two.get());
  EXPECT_EQ(whole(batcher().submit(request(22, 5), {}).get()).text, text_alone(tokenizer_, request(22, 5)));
}

TEST_F(BatcherTest, AnEngineThatFailsEndsAllRepliesAndFurtherRequestsSayWhy) {
  state_.allow(1);
  const auto reply = batcher().submit(request(20, 30), {});
  state_.broken = true;
  state_.let_go();
  EXPECT_THAT(whole(reply.get()).last.failure, Names("not a number"));
  EXPECT_TRUE(batcher().failed());
  EXPECT_THAT(message_of<Error>([&] { batcher().submit(request(20, 30), {}); }), Names("not a number"));
  EXPECT_EQ(batcher().counters().failed, 1);
}

TEST_F(BatcherTest, EndingItEndsWhatRunsAndAfterRefusingFurtherOnesWhatRunsGoesOn) {
  state_.allow(3);
  const auto runs = batcher().submit(request(20, 8), {});
  batcher().refuse_further();
  EXPECT_THROW(batcher().submit(request(21, 5), {}), Error);
  state_.let_go();
  EXPECT_EQ(whole(runs.get()).text, text_alone(tokenizer_, request(20, 8)));

  FakeEngineState other;
  other.allow(3);
  std::shared_ptr<PendingReply> cut;
  {
    Batcher ends(std::make_unique<FakeEngine>(&other), tokenizer_, {});
    cut = ends.submit(request(20, 390), {});
    other.let_go();
  }
  EXPECT_TRUE(whole(cut.get()).last.ended);
}

}  // namespace
}  // namespace allot::app
