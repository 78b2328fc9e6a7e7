#include "aggregator/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/run_directory.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

class RunFollowerTest : public testing::Test {
 protected:
  RunFollowerTest() {
    write_file_atomically(spec_path(directory_), wire::to_json(driver_.spec()));
    driver_.hello("w");
  }
  // Runs `episodes` learning episodes, each with its number of right answers.
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

TEST_F(RunFollowerTest, ItsRowsHoldWhatWasGrantedAndAnswered) {
  const wire::Lease lease = driver_.leases("w", 1).at(0);
  const wire::EpisodeResult result = result_of(lease, 2);
  driver_.answer("w", result);
  const std::vector<EpisodeRow> rows = episode_rows(directory_);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].episode, lease.episode());
  EXPECT_EQ(rows[0].stage, "learn");
  EXPECT_THAT(rows[0].samples, ElementsAreArray(lease.samples()));
  EXPECT_EQ(rows[0].reward, 2.0 / lease.questions_size());
  int64_t tokens = 0;
  for (const auto& outcome : result.outcomes()) tokens += outcome.output_tokens();
  EXPECT_EQ(rows[0].output_tokens, tokens);
  EXPECT_EQ(rows[0].worker, "w");
  EXPECT_EQ(rows[0].finished, driver_.clock().now());
}

TEST_F(RunFollowerTest, TheWholeRunKeepsItsRewardsInTheirOrder) {
  run(6);
  const RunData whole = read_run(directory_);
  const std::vector<EpisodeRow> rows = episode_rows(directory_);
  ASSERT_EQ(whole.learned.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(whole.learned[i].reward, rows[i].reward);
    EXPECT_EQ(whole.learned[i].finished, rows[i].finished);
  }
}

TEST_F(RunFollowerTest, EpisodesOfAnotherKindThanTheRunsCountButAreNotInItsCurve) {
  run(4);
  Database(driver_.file(), Database::Mode::kReadWrite)
      .execute("UPDATE episodes SET kind = 'divergence' WHERE episode = 1");
  const RunData whole = read_run(directory_);
  const std::vector<EpisodeRow> rows = episode_rows(directory_);
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_EQ(rows[0].kind, RewardKind::kAnswers);
  EXPECT_EQ(rows[1].kind, RewardKind::kDivergence);
  EXPECT_THAT(whole.learned, SizeIs(3));
  EXPECT_EQ(whole.learned[1].reward, rows[2].reward);
  EXPECT_EQ(whole.learned_of_other_kinds, 1);
}

TEST_F(RunFollowerTest, OfALongRunEveryKthVersionIsKeptAndTheLast) {
  const int64_t last = 2 * RunData::kMostVersions + 7;
  Database(driver_.file(), Database::Mode::kReadWrite)
      .execute(
          fmt::format("WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < "
                      "{}) INSERT INTO "
                      "versions SELECT n, seq, at_ms, shares, recommended, entropy, layer_name, scalars, "
                      "digest FROM number, "
                      "versions",
                      last));
  const RunData whole = read_run(directory_);
  EXPECT_LE(std::ssize(whole.versions), RunData::kMostVersions + 1);
  EXPECT_EQ(whole.versions[0].version, 0);
  EXPECT_EQ(whole.versions[1].version, 3);
  EXPECT_EQ(whole.versions.back().version, last);
  EXPECT_EQ(whole.policy_version, last);
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
              testing::ThrowsMessage<NotFound>(Names(empty.path())));
}

}  // namespace
}  // namespace allot::aggregator
