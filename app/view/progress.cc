#include "app/view/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cmath>

#include "app/view/terminal_text.h"
#include "base/number_text.h"
#include "episode/reward_kind.h"
#include "episode/samples.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

constexpr size_t kBarCells = 24;
constexpr size_t kLeastBarCells = 8;
constexpr size_t kPlainColumns = 160;
constexpr auto kPlainInterval = std::chrono::seconds(10);

struct Done {
  int64_t done;
  int64_t wanted;
  double share() const { return wanted > 0 ? static_cast<double>(done) / static_cast<double>(wanted) : 0; }
};

Done work_of(const wire::Status& status) {
  if (status.stage() == "learn") return {status.episodes_done(), status.episodes_wanted()};
  const Answered questions = answered(status);
  return {questions.done, questions.wanted};
}

}  // namespace

std::string eta_text(const wire::Status& status) {
  const bool may_settle = status.until_settled() && status.has_outlook() && status.stage() == "learn";
  return fmt::format("eta {}{}", may_settle && status.eta_s() >= 0 ? "at most " : "",
                     duration_text(status.eta_s()));
}

Answered answered(const wire::Status& status) {
  Answered sum;
  if (status.stage() == "preflight") {
    for (const auto& schedule : status.preflight().schedules()) {
      sum.done += schedule.answered();
      sum.wanted += status.preflight().wanted();
    }
    return sum;
  }
  for (const auto& score : status.scores()) {
    sum.done += score.answered();
    sum.wanted += score.wanted();
  }
  return sum;
}

std::string schedule_text(const wire::Status& status) {
  return layers_text({status.recommended().data(), static_cast<size_t>(status.recommended_size())});
}

std::string reward_text(const wire::Status& status, double reward) {
  const RewardKindRow* kind = find_reward_kind(status.reward_kind());
  return kind == nullptr ? fmt::format("{:.4g}", reward) : kind->format(reward);
}

std::optional<std::string> recent_reward_text(const wire::Status& status) {
  // An aggregator of release 0.1 sends no curve.
  const bool none =
      status.episodes_done() == 0 || (status.curve().window() > 0 && status.curve().episodes_size() == 0);
  if (none) return std::nullopt;
  return reward_text(status, status.mean_reward_recent());
}

std::string score_text(double score) {
  return row_of(kVerifiedKind).format(score);
}

double mean_score(const wire::Score& score) {
  if (score.answered() < 1) return 0;
  return score.has_mean() ? score.mean()
                          : static_cast<double>(score.correct()) / static_cast<double>(score.answered());
}

std::optional<evaluation::Interval> interval_of(const wire::Score& score) {
  if (score.has_mean() || score.answered() < 1 || score.correct() < 0 || score.correct() > score.answered())
    return std::nullopt;
  return evaluation::wilson_interval(score.correct(), score.answered());
}

std::string progress_line(const wire::Status& status, size_t columns) {
  const Done work = work_of(status);
  std::string rest = fmt::format(" {}/{}", work.done, work.wanted);
  if (status.stage() != "finished") rest += "  " + eta_text(status);
  if (status.stage() == "learn") {
    if (const auto recent = recent_reward_text(status)) rest += "  reward " + *recent;
  } else {
    for (const auto& score : status.scores()) {
      if (score.answered() == 0) continue;
      rest += fmt::format("  {} {}", score.label(), score_text(mean_score(score)));
    }
  }
  rest += fmt::format("  schedule {}", schedule_text(status));

  // Numbers say more than a long bar, so on a narrow terminal the bar is shortened first.
  const size_t taken = status.stage().size() + rest.size() + 3;
  const size_t cells = std::clamp(columns > taken ? columns - taken : 0, kLeastBarCells, kBarCells);
  return fitted(fmt::format("{} |{:<{}}|{}", status.stage(), bar(work.share(), cells), cells, rest), columns);
}

size_t ProgressView::columns() const {
  winsize size = {};
  if (!terminal_) return kPlainColumns;
  if (::ioctl(::fileno(stream_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col - 1u;  // the last column would wrap on some terminals
}

bool ProgressView::worth_a_line(const wire::Status& status, Timestamp now) {
  const Done work = work_of(status);
  const auto twentieth = static_cast<int64_t>(work.share() * 20);
  const bool moved = work.done != last_done_;
  if (status.stage() == last_stage_ && twentieth == last_twentieth_ &&
      !(moved && now - last_line_ >= kPlainInterval)) {
    return false;
  }
  last_stage_ = status.stage();
  last_twentieth_ = twentieth;
  last_done_ = work.done;
  last_line_ = now;
  return true;
}

void ProgressView::update(const wire::Status& status, Timestamp now) {
  if (terminal_) {
    drawn_ = progress_line(status, columns());
    std::fprintf(stream_, "\r\x1b[K%s", drawn_.c_str());
  } else if (worth_a_line(status, now)) {
    std::fprintf(stream_, "%s\n", progress_line(status, columns()).c_str());
  }
  std::fflush(stream_);
}

void ProgressView::message(std::string_view text) {
  if (terminal_) std::fputs("\r\x1b[K", stream_);
  std::fprintf(stream_, "%.*s\n", static_cast<int>(text.size()), text.data());
  if (terminal_) std::fputs(drawn_.c_str(), stream_);
  std::fflush(stream_);
}

void ProgressView::end() {
  if (!drawn_.empty()) std::fputc('\n', stream_);
  drawn_.clear();
  std::fflush(stream_);
}

}  // namespace allot::app
