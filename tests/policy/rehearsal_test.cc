#include "policy/rehearsal.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "policy/simulation.h"
#include "policy/surface.h"

namespace allot::policy {
namespace {

// Notes what it is told, asks for three questions of its own in every fourth proposal and for five of the
// caller's in the one after it.
class Witness final : public Policy {
 public:
  std::vector<Proposal> ask(int count) override {
    std::vector<Proposal> proposals;
    for (; count > 0; --count) {
      const int64_t number = next_++;
      proposals.push_back({number, number / 4, uniform_schedule(8, 8)});
      if (number % 4 == 0) proposals.back().questions = {7, 8, 9};
      if (number % 4 == 1) proposals.back().num_questions = 5;
    }
    most_in_flight = std::max(most_in_flight, next_ - ended);
    return proposals;
  }
  TellResult tell(const Outcome& outcome) override {
    ++ended;
    EXPECT_DOUBLE_EQ(outcome.reward, mean_score(outcome.results));
    for (const QuestionResult& result : outcome.results) asked[outcome.number].push_back(result.question);
    order.push_back(outcome.number);
    return TellResult::kLearned;
  }
  void give_up(int64_t) override { ++ended, ++lost; }
  void bound(const Bounds&) override {}
  Schedule recommend() const override { return uniform_schedule(8, 8); }
  Description describe() const override { return {}; }
  int64_t version() const override { return 0; }
  std::string save() const override { return {}; }

  std::map<int64_t, std::vector<uint32_t>> asked;  // questions by proposal
  std::vector<int64_t> order;                      // of what was told
  int64_t ended = 0;
  int64_t lost = 0;
  int64_t most_in_flight = 0;

 private:
  int64_t next_ = 0;
};

TEST(Rehearsal, ScoresAGroupOnTheSameQuestionsOrOnThoseThatAProposalNames) {
  Witness witness;
  rehearse(witness, tiny_landscape(), {.episodes = 40, .questions_per_episode = 16});
  // Four proposals of it have 3 + 5 + 16 + 16 questions, in place of 64.
  ASSERT_EQ(witness.asked.size(), 64u);
  EXPECT_EQ(witness.asked[0], (std::vector<uint32_t>{7, 8, 9}));
  EXPECT_EQ(witness.asked[2].size(), 16u);
  EXPECT_EQ(witness.asked[2], witness.asked[3]);
  EXPECT_NE(witness.asked[2], witness.asked[6]);
  // With fewer questions, a proposal gets the first of the group.
  EXPECT_EQ(witness.asked[1], std::vector<uint32_t>(witness.asked[2].begin(), witness.asked[2].begin() + 5));
}

TEST(Rehearsal, KeepsSoManyInFlightEndsThemInRandomOrderAndLosesSome) {
  Witness witness;
  rehearse(witness, tiny_landscape(), {.episodes = 625, .in_flight = 20, .loss = 0.1});
  EXPECT_NEAR(static_cast<double>(witness.ended), 1000, 20) << "episodes of 10 questions in place of 16";
  EXPECT_EQ(witness.most_in_flight, 20);
  EXPECT_NEAR(static_cast<double>(witness.lost), 100, 40);
  EXPECT_FALSE(std::ranges::is_sorted(witness.order));
}

TEST(Rehearsal, TellsTheResultOfEachQuestionAndSurvivesLosses) {
  const RatedSurface rated = find_surface_family("middle")->make(1);
  const auto policy = make_policy({.name = "pairs", .layers = rated.layers, .total = rated.total, .seed = 3});
  const std::vector<double> curve = rehearse(
      *policy, rated.surface, {.episodes = 600, .in_flight = 20, .loss = 0.1, .checkpoints = {1, 600}});
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_DOUBLE_EQ(curve[0], rated.uniform_accuracy);
  EXPECT_GT(rated.share_of_gap(curve[1]), 0.5);
}

TEST(Rehearsal, IsAFunctionOfItsSeeds) {
  const PolicyConfig config{.layers = 8, .total = 64, .seed = 1};
  const RehearsalOptions options{
      .episodes = 60, .in_flight = 5, .loss = 0.1, .seed = 2, .checkpoints = {20, 40, 60}};
  const Landscape landscape = tiny_landscape();
  EXPECT_EQ(rehearse(*make_policy(config), landscape, options),
            rehearse(*make_policy(config), landscape, options));
}

}  // namespace
}  // namespace allot::policy
