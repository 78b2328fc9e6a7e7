#include "aggregator/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class RunFollowerTest : public testing::Test {
 protected:
  RunFollowerTest() {
    write_file_atomically(spec_path(directory_), wire::to_json(driver_.spec()));
    driver_.hello("w");
  }
  // Runs so many learning episodes, each with its number of right answers.
  void run(int episodes) {
    for (int i = 0; i < episodes; ++i) {
      const wire::Lease lease = driver_.leases("w", 1).at(0);
      driver_.answer("w", result_of(lease, static_cast<int>(lease.episode() % 4)));
    }
  }
  std::vector<int64_t> new_episodes(RunFollower* follower) const {
    std::vector<int64_t> numbers;
    follower->new_episodes([&](const EpisodeRow& row) { numbers.push_back(row.episode); });
    return numbers;
  }
  std::vector<int64_t> new_versions(RunFollower* follower) const {
    std::vector<int64_t> numbers;
    follower->new_versions([&](const VersionRow& row) { numbers.push_back(row.version); });
    return numbers;
  }

  CoreDriver driver_{Storage::kSqlite, example_spec()};
  std::filesystem::path directory_ = driver_.file().parent_path();
};

TEST_F(RunFollowerTest, EachRowIsHandedOverOnceInTheOrderOfTheRun) {
  RunFollower follower(directory_);
  EXPECT_THAT(new_episodes(&follower), IsEmpty());
  EXPECT_THAT(new_versions(&follower), ElementsAre(0));
  run(3);
  EXPECT_THAT(new_episodes(&follower), ElementsAre(0, 1, 2));
  EXPECT_THAT(new_episodes(&follower), IsEmpty());
  run(2);
  EXPECT_THAT(new_episodes(&follower), ElementsAre(3, 4));
  const RunData whole = read_run(directory_);
  EXPECT_THAT(new_versions(&follower), SizeIs(whole.versions.size() - 1));
  EXPECT_EQ(follower.started(), whole.versions.front().at);
}

TEST_F(RunFollowerTest, ItsRowsAreThoseOfTheWholeRun) {
  run(6);
  const RunData whole = read_run(directory_);
  RunFollower follower(directory_);
  size_t at = 0;
  follower.new_episodes([&](const EpisodeRow& row) {
    ASSERT_LT(at, whole.episodes.size());
    const EpisodeRow& expected = whole.episodes[at++];
    EXPECT_EQ(row.episode, expected.episode);
    EXPECT_EQ(row.samples, expected.samples);
    EXPECT_EQ(row.reward, expected.reward);
    EXPECT_EQ(row.output_tokens, expected.output_tokens);
    EXPECT_EQ(row.finished, expected.finished);
  });
  EXPECT_EQ(at, 6u);
}

TEST_F(RunFollowerTest, WhatAnInterruptedVisitDidNotFinishComesAgain) {
  run(4);
  RunFollower follower(directory_);
  EXPECT_THROW(follower.new_episodes([](const EpisodeRow& row) {
    if (row.episode == 2) throw StorageError("the disk is full");
  }),
               StorageError);
  EXPECT_THAT(new_episodes(&follower), ElementsAre(0, 1, 2, 3));
}

TEST_F(RunFollowerTest, ADirectoryWithoutAHistoryIsNamed) {
  const TemporaryDirectory empty;
  EXPECT_THAT([&] { RunFollower follower(empty.path()); },
              testing::ThrowsMessage<NotFound>(testing::HasSubstr(empty.path().string())));
}

}  // namespace
}  // namespace allot::aggregator
