// Learning that ends when the learner expects no more of it.
#include <gmock/gmock.h>

#include "aggregator/outlook.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using wire::Control;

// The learner `pairs` with an outlook that follows from its version: from version 1 on there is something
// left to gain, `left(version)`.
class WithOutlook final : public policy::Policy {
 public:
  WithOutlook(const policy::PolicyConfig& config, double (*left)(int64_t version))
      : pairs_(policy::make_policy(config)), left_(left) {}

  std::vector<policy::Proposal> ask(int count) override { return pairs_->ask(count); }
  policy::TellResult tell(const policy::Outcome& outcome) override { return pairs_->tell(outcome); }
  void give_up(int64_t number) override { pairs_->give_up(number); }
  void bound(const policy::Bounds& bounds) override { pairs_->bound(bounds); }
  policy::Schedule recommend() const override { return pairs_->recommend(); }
  policy::Description describe() const override { return pairs_->describe(); }
  std::optional<policy::Outlook> outlook() const override {
    if (version() == 0) return std::nullopt;
    return policy::Outlook{.over_even = {0.1, 0.05, 0.15}, .left_to_gain = left_(version())};
  }
  int64_t version() const override { return pairs_->version(); }
  std::string save() const override { return pairs_->save(); }

 private:
  std::unique_ptr<policy::Policy> pairs_;
  double (*left_)(int64_t version);
};

// Nothing is left from version 6 on, which is after 24 episodes.
std::unique_ptr<policy::Policy> soon(const policy::PolicyConfig& config) {
  return std::make_unique<WithOutlook>(config, [](int64_t version) { return version < 6 ? 0.1 : 0.004; });
}
// Nothing is left from version 18 on, which is after 72 episodes.
std::unique_ptr<policy::Policy> late(const policy::PolicyConfig& config) {
  return std::make_unique<WithOutlook>(config, [](int64_t version) { return version < 18 ? 0.1 : 0.004; });
}
// Something is left after every third update.
std::unique_ptr<policy::Policy> never(const policy::PolicyConfig& config) {
  return std::make_unique<WithOutlook>(config,
                                       [](int64_t version) { return version % 3 == 0 ? 0.1 : 0.004; });
}

wire::RunSpec until_settled() {
  wire::RunSpec spec = example_spec();  // an update takes 4 episodes
  spec.set_until_settled(true);
  spec.set_gain_floor(0.005);
  spec.set_most_episodes(120);
  return spec;
}

// Learns one episode after the other until it is over.
void learn(CoreDriver* driver) {
  driver->hello("w");
  while (driver->status().stage() == "learn") driver->answer("w", result_of(driver->leases("w", 1).at(0), 2));
}

class Settled : public testing::TestWithParam<Storage> {};
INSTANTIATE_TEST_SUITE_P(Storages, Settled, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(Settled, LearningEndsWhenThreeUpdatesInARowLeaveTooLittleToGain) {
  CoreDriver driver(GetParam(), until_settled(), late);
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 80) << "version 20 is the third in a row";
  EXPECT_TRUE(driver.status().settled());
  const std::vector<RunControlled> controls = driver.records_of<RunControlled>();
  ASSERT_THAT(controls, SizeIs(2));
  EXPECT_EQ(controls[0].by, kByOutlook);
  EXPECT_EQ(controls[0].action, ControlAction::kEpisodes);
  EXPECT_EQ(controls[0].episodes, 120) << "a learner with an outlook may take most_episodes";
  EXPECT_EQ(controls[1].by, kBySettled);
  EXPECT_EQ(controls[1].action, ControlAction::kStop);
  EXPECT_EQ(controls[1].episodes, 80);
  EXPECT_EQ(driver.status().outlook().left_to_gain(), 0.004);
  EXPECT_EQ(driver.status().outlook().gain(), 0.1);
}

TEST_P(Settled, NotBeforeALeastNumberOfEpisodes) {
  CoreDriver driver(GetParam(), until_settled(), soon);
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 64);
  EXPECT_TRUE(driver.status().settled());
}

TEST_P(Settled, WhatIsLeftAfterOneOfThreeUpdatesGoesOnToTheLargestNumberOfEpisodes) {
  CoreDriver driver(GetParam(), until_settled(), never);
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 120);
  EXPECT_FALSE(driver.status().settled());
}

TEST_P(Settled, ALearnerWithoutAnOutlookStopsAtItsNumberOfEpisodes) {
  CoreDriver driver(GetParam(), until_settled());
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 10);
  EXPECT_FALSE(driver.status().settled());
  EXPECT_FALSE(driver.status().has_outlook());
  EXPECT_THAT(driver.records_of<RunControlled>(), IsEmpty());
}

TEST_P(Settled, ARunThatAsksForANumberOfEpisodesTakesThemAll) {
  wire::RunSpec spec = until_settled();
  spec.set_until_settled(false);
  spec.set_episodes(90);
  CoreDriver driver(GetParam(), spec, soon);
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 90);
}

TEST_P(Settled, AnOperatorsNumberOfEpisodesStands) {
  CoreDriver driver(GetParam(), until_settled(), soon);
  driver.hello("w");
  for (int i = 0; i < 20; ++i) driver.answer("w", result_of(driver.leases("w", 1).at(0), 2));
  EXPECT_EQ(driver.status().episodes_wanted(), 120);
  EXPECT_TRUE(driver.control(Control::ACTION_EPISODES, 100).done());
  EXPECT_FALSE(driver.status().until_settled());
  learn(&driver);
  EXPECT_EQ(driver.status().episodes_done(), 100);
  EXPECT_FALSE(driver.status().settled());
  driver.crash();
  EXPECT_FALSE(driver.status().until_settled());
}

TEST_P(Settled, NoOperatorGoesByTheNamesOfTheRunItself) {
  CoreDriver driver(GetParam(), until_settled(), soon);
  Control stop;
  stop.set_action(Control::ACTION_STOP);
  for (const std::string_view name : {kByOutlook, kBySettled}) {
    const wire::ControlReply reply = driver.control(stop, std::string(name));
    EXPECT_FALSE(reply.done());
    EXPECT_THAT(reply.message(), Names(name, "another name"));
  }
  EXPECT_THAT(driver.records_of<RunControlled>(), IsEmpty());
}

TEST_P(Settled, KilledAfterEveryResultItEndsAtTheSameEpisode) {
  CoreDriver driver(GetParam(), until_settled(), late);
  CoreDriver undisturbed(GetParam(), until_settled(), late);
  learn(&undisturbed);
  while (driver.status().stage() == "learn") {
    driver.hello("w");
    driver.answer("w", result_of(driver.leases("w", 1).at(0), 2));
    driver.crash();
    EXPECT_TRUE(driver.core().replayed_exactly());
  }
  EXPECT_EQ(driver.status().episodes_done(), undisturbed.status().episodes_done());
  EXPECT_TRUE(driver.status().settled());
  EXPECT_EQ(driver.records_of<RunControlled>().size(), 2u);
}

TEST(SettledHistory, ReadersSeeThatItSettledAndTheOutlookOfEachVersion) {
  CoreDriver driver(Storage::kSqlite, until_settled(), soon);
  const auto directory = driver.file().parent_path();
  write_file_atomically(spec_path(directory), wire::to_json(driver.spec()));
  EXPECT_TRUE(read_run(directory).until_settled);
  learn(&driver);
  const RunData run = read_run(directory);
  EXPECT_EQ(run.stage, "verify");
  EXPECT_TRUE(run.settled);
  EXPECT_EQ(run.episodes_wanted, 64);
  ASSERT_THAT(run.versions, SizeIs(17));
  EXPECT_EQ(outlook_of(run.versions[0].described), std::nullopt);
  EXPECT_EQ(outlook_of(run.versions[5].described)->left_to_gain, 0.1);
  EXPECT_EQ(outlook_of(run.versions[6].described)->left_to_gain, 0.004);
  EXPECT_EQ(outlook_of(run.versions[6].described)->over_even, (policy::Outlook::Estimate{0.1, 0.05, 0.15}));
}

}  // namespace
}  // namespace allot::aggregator
