// What a backend of ranks makes of theirs, and threads of ranks that fail.
#include "model/split_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/model/thread_collective.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(RankThreads, CallEveryRankOnAThreadOfItsOwnWhichStays) {
  RankThreads threads(3);
  EXPECT_EQ(threads.ranks(), 3);
  std::vector<std::thread::id> first(3), second(3);
  const std::function<void()> nothing = [] {};
  threads.run([&](int32_t rank) { first[static_cast<size_t>(rank)] = std::this_thread::get_id(); }, nothing);
  threads.run([&](int32_t rank) { second[static_cast<size_t>(rank)] = std::this_thread::get_id(); }, nothing);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
  EXPECT_NE(first[2], std::thread::id());
  EXPECT_NE(first[0], first[1]);
}

TEST(RankThreads, RethrowTheFirstFailureAndTellOfItOnce) {
  RankThreads threads(4);
  std::atomic<int> told = 0;
  const auto run = [&] {
    threads.run(
        [](int32_t rank) {
          if (rank > 0) throw InvalidArgument("of a rank");
        },
        [&] { ++told; });
  };
  EXPECT_THAT(run, ThrowsMessage<InvalidArgument>("of a rank"));
  EXPECT_EQ(told, 1);
  EXPECT_THAT(run, ThrowsMessage<InvalidArgument>("of a rank"));
  EXPECT_EQ(told, 2);
}

// Gives tokens as the test says.
class GivenBackend final : public Backend {
 public:
  explicit GivenBackend(std::function<std::vector<int32_t>()> pass) : pass_(std::move(pass)) {}
  const KvCacheShape& cache_shape() const override { return shape_; }
  void open_slot(int32_t, std::span<const int32_t>) override {}
  int32_t max_submitted() const override { return 1; }
  void submit(const ForwardBatch&, const kernels::AttentionMethod&, std::span<const TokenChoice>) override {
    tokens_ = pass_();
  }
  std::span<const int32_t> take() override { return tokens_; }
  std::span<const float> logits(const ForwardBatch&, const kernels::AttentionMethod&) override { return {}; }
  void reserve_states(int64_t) override {}
  void keep_states(const ForwardBatch&, const kernels::AttentionMethod&, int64_t,
                   std::span<int64_t>) override {}
  void compare_states(int64_t, std::span<const int64_t>, int64_t,
                      std::span<kernels::RowDivergence>) override {}

 private:
  KvCacheShape shape_;
  std::function<std::vector<int32_t>()> pass_;
  std::vector<int32_t> tokens_;
};

std::unique_ptr<Backend> split_of(
    std::vector<std::function<std::vector<int32_t>()>> passes, std::function<void()> abort = [] {}) {
  SplitBackendParts parts{.threads = std::make_unique<RankThreads>(static_cast<int32_t>(passes.size())),
                          .ranks = {},
                          .abort = std::move(abort)};
  for (auto& pass : passes) parts.ranks.push_back(std::make_unique<GivenBackend>(std::move(pass)));
  return make_split_backend(std::move(parts));
}

TEST(SplitBackend, RefusesTokensThatRanksDoNotAgreeOn) {
  const auto five = [] { return std::vector<int32_t>{5, 6, 7}; };
  const auto backend = split_of({five, five, [] { return std::vector<int32_t>{5, 8, 7}; }});
  backend->submit({}, {}, {});
  EXPECT_THAT([&] { (void)backend->take(); }, ThrowsMessage<Error>(Names("rank 2", "row 1")));
}

// Without abort() this would hang.
TEST(SplitBackend, ThatFailsOnOneRankEndsTheWaitOfOthersAndRefusesLaterPasses) {
  ThreadGroup group(3);
  const auto waits = [&](int32_t rank) {
    return [&group, rank] {
      float value = 1;
      group.of_rank(rank).sum(&value, 1, kernels::DType::kFloat32, nullptr);
      return std::vector<int32_t>{};
    };
  };
  const auto fails = []() -> std::vector<int32_t> { throw InvalidArgument("rank 1 has no memory"); };
  const auto backend = split_of({waits(0), fails, waits(2)}, [&] { group.abort(); });
  EXPECT_THAT([&] { backend->submit({}, {}, {}); }, ThrowsMessage<InvalidArgument>(HasSubstr("no memory")));
  EXPECT_THAT([&] { backend->submit({}, {}, {}); }, ThrowsMessage<Error>(HasSubstr("earlier pass")));
}

}  // namespace
}  // namespace allot::model
