// How the progress of a run is shown: one line that is redrawn on a terminal, a new line now
// and then elsewhere.
#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "evaluation/statistics.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// "eta 3m 20s"; "eta at most 3m 20s" while learning may end sooner because it settles.
std::string eta_text(const wire::Status& status);

// How many questions the preflight or the verify stage has answered, and how many it wants.
struct Answered {
  int64_t done = 0;
  int64_t wanted = 0;
};
Answered answered(const wire::Status& status);

// A reward or a mean score of the run in the unit of its kind: "61.3%", "0.031 nats"; a bare number for a
// kind that this release does not know.
std::string reward_text(const wire::Status& status, double reward);
// The mean of the last rewards of that kind; nothing while there are none, as in the first episodes of a run
// that learns from another kind first.
std::optional<std::string> recent_reward_text(const wire::Status& status);
// A score of the verification, which is on answers whatever the run's kind.
std::string score_text(double score);
// The recommended schedule: "33,8,7".
std::string schedule_text(const wire::Status& status);
// Mean score of a verified schedule; 0 before the first answer.
double mean_score(const wire::Score& score);
// The 95 % interval of its right answers; none before the first answer, with partial credit, and for counts
// that cannot be.
std::optional<evaluation::Interval> interval_of(const wire::Score& score);

// One line of at most `columns` characters: stage, bar, episodes (in the verify stage: questions) done and
// wanted, ETA, recent mean reward or the scores so far, and the currently recommended schedule, cut at the
// end of the line.
std::string progress_line(const wire::Status& status, size_t columns);

class ProgressView {
 public:
  // `stream` is a terminal: the line is redrawn in place with every update. Else a line is written when the
  // stage changes, after every twentieth of it and at least every ten seconds of progress.
  ProgressView(std::FILE* stream, bool terminal) : stream_(stream), terminal_(terminal) {}
  ~ProgressView() { end(); }
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void update(const wire::Status& status, Timestamp now);
  // A line that stays, above the bar.
  void message(std::string_view text);
  // Leaves the last drawn line on the screen.
  void end();

 private:
  size_t columns() const;
  bool worth_a_line(const wire::Status& status, Timestamp now);

  std::FILE* stream_;
  bool terminal_;
  std::string drawn_;  // the line now on the screen
  std::string last_stage_;
  int64_t last_twentieth_ = -1;
  int64_t last_done_ = -1;
  Timestamp last_line_{};
};

}  // namespace allot::app
