// Cross-checked grades. A worker reports the scores of its own replies, and nothing but another worker can
// say whether they are true. So a share of the told episodes is run once more by a worker of another holder
// (holder.h), as an episode of the stage "check" that no learner is told of; what the two report of the same
// question either agrees or is counted against both holders. Who disagrees with everybody is the one to look
// at. Draws depend on the episode and the question alone, so honest workers differ only where rounding on
// other devices changes a reply.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aggregator/records.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

// What was found so far.
class CheckTally {
 public:
  struct Row {
    int64_t questions = 0;
    int64_t disagreements = 0;
  };

  // Compares what two holders report of an episode, question by question. Throws std::logic_error where they
  // report different numbers of questions.
  void add(RewardKind kind, std::string_view first_holder, std::span<const QuestionResult> first,
           std::string_view second_holder, std::span<const QuestionResult> second);

  int64_t episodes() const { return episodes_; }
  const Row& all() const { return all_; }
  // Each comparison counts for both holders.
  const std::map<std::string, Row, std::less<>>& by_holder() const { return by_holder_; }
  // At most 100 holders, those with the largest share of disagreements first.
  wire::CrossCheck describe() const;

 private:
  int64_t episodes_ = 0;
  Row all_;
  std::map<std::string, Row, std::less<>> by_holder_;
};

// Which episodes are to be checked, and by whom. Follows from the spec and the records alone, so that a
// restart replays it.
class CrossCheck {
 public:
  // Of told episodes that wait for their check at most this many are kept; where nobody else is there to
  // check them, later ones are not checked.
  static constexpr size_t kMostWaiting = 64;

  // `share` of the told episodes is checked, 0 to 1, drawn by `seed` and the episode's number.
  CrossCheck(uint32_t seed, double share) : seed_(seed), share_(share) {}

  // An episode that is no check was told.
  void told(const PlannedEpisode& episode, std::span<const QuestionResult> results,
            const std::string& worker);
  // The oldest episode that waits and that a worker of `holder` may check; null without one.
  const PlannedEpisode* waiting_for(std::string_view holder) const;
  // Begins the check of an episode that waits. Returns the episode that repeats it, without a number. Throws
  // std::logic_error when it does not wait.
  PlannedEpisode begin(EpisodeId checked);
  // Whether workers of `holder` may run the check of `checked`, which has begun.
  bool may_run(EpisodeId checked, std::string_view holder) const {
    return begun_.at(checked).holder != holder;
  }
  // A check was told.
  void finish(const PlannedEpisode& check, std::span<const QuestionResult> results,
              const std::string& worker);
  void give_up(const PlannedEpisode& check);

  const CheckTally& tally() const { return tally_; }

 private:
  struct Told {
    PlannedEpisode episode;
    std::vector<QuestionResult> results;
    std::string holder;
  };

  bool is_drawn(EpisodeId episode) const;

  uint32_t seed_;
  double share_;
  std::deque<Told> waiting_;
  std::map<EpisodeId, Told> begun_;  // by the checked episode
  CheckTally tally_;
};

}  // namespace allot::aggregator
