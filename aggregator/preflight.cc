#include "aggregator/preflight.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "aggregator/run_spec.h"
#include "base/number_text.h"
#include "base/proportion.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

constexpr const char* kHowToGoOn =
    "to learn all the same, start a run in another directory with --ignore-preflight";

}  // namespace

Preflight::Preflight(const wire::RunSpec& spec)
    : wanted_(preflight_questions(spec)),
      ignored_(spec.ignore_preflight()),
      gain_floor_(spec.gain_floor()),
      price_per_hour_(spec.price_per_hour()),
      total_(spec.policy().total()),
      max_new_tokens_(spec.generation().max_new_tokens()),
      prompt_style_(spec.task().prompt_style()),
      even_(even_schedule(spec).samples),
      episodes_(spec.episodes()),
      divergence_questions_(divergence_episodes(spec) * questions_of_divergence(spec)),
      reply_questions_((episodes_ - divergence_episodes(spec)) * spec.questions_per_episode() +
                       kVerifiedSchedules * int64_t{spec.task().heldout_questions()}) {}

void Preflight::add(std::string_view label, std::span<const QuestionResult> results, const Work& work) {
  Measured& measured = measured_[label == kLabels[0] ? 0 : 1];
  for (const QuestionResult& result : results) {
    measured.scores[result.question] = result.score;
    measured.right += result.score == 1;
    measured.score_sum += result.score;
    measured.cut_off += result.finish == Finish::kLength;
    measured.no_answer += result.no_answer;
    measured.prompt_tokens += result.prompt_tokens;
    measured.output_tokens += result.output_tokens;
  }
  answered_by_[work.worker] += static_cast<int64_t>(results.size());
  const Timestamp from =
      work.at - std::chrono::duration_cast<Duration>(std::chrono::duration<double>(work.seconds));
  const auto [entry, fresh] = busy_.try_emplace(work.worker, from, work.at);
  if (fresh) return;
  entry->second.first = std::min(entry->second.first, from);
  entry->second.second = std::max(entry->second.second, work.at);
}

// A worker runs several episodes at once, so their seconds must not be added up.
double Preflight::worker_seconds() const {
  double seconds = 0;
  for (const auto& [worker, span] : busy_)
    seconds += std::chrono::duration<double>(span.second - span.first).count();
  return seconds;
}

double Preflight::run_worker_seconds(int64_t questions,
                                     const std::map<std::string, int64_t, std::less<>>& at_once) const {
  const int64_t answered = measured_[0].answered() + measured_[1].answered();
  if (answered == 0) return 0;
  double as_if = 0, in_all = 0;
  for (const auto& [worker, its] : answered_by_) {
    const auto full = at_once.find(worker);
    as_if += static_cast<double>(full == at_once.end() ? its : std::max(its, full->second));
    in_all += static_cast<double>(its);
  }
  // Questions that several workers answered count once.
  return worker_seconds() / static_cast<double>(answered) * (in_all / as_if) * static_cast<double>(questions);
}

std::string Preflight::dense_fails() const {
  const Measured& dense = measured_[0];
  // With partial credit the sum of the scores stands for the right answers.
  const double bound = wilson_bounds(std::llround(dense.score_sum), dense.answered()).second;
  if (dense.score_sum >= 2 && bound >= kLeastAccuracy) return "";
  const auto share = [&](int64_t replies) {
    return static_cast<double>(replies) / static_cast<double>(dense.answered());
  };
  std::string remedy = "try another model, another task or easier questions";
  if (share(dense.cut_off) > 0.5) {
    remedy = fmt::format("{} of its replies were cut off at {} tokens: give more with --max-new-tokens",
                         percent(share(dense.cut_off), 0), max_new_tokens_);
  } else if (share(dense.no_answer) > 0.5) {
    remedy = fmt::format(
        "{} of its replies hold no answer that could be found: try another --prompt-style than {}",
        percent(share(dense.no_answer), 0), prompt_style_);
  }
  return fmt::format(
      "even dense attention answers only {} of {} training questions, so there is next to nothing that a schedule "
      "could keep; {}; {}",
      dense.right, dense.answered(), remedy, kHowToGoOn);
}

// How much learning can bring is bounded by what the even schedule loses against dense.
std::string Preflight::nothing_to_gain() const {
  const auto& [dense, even] = measured_;
  double sum = 0, squares = 0;
  int64_t both = 0;
  for (const auto& [question, score] : dense.scores) {
    const auto other = even.scores.find(question);
    if (other == even.scores.end()) continue;
    ++both;
    sum += score - other->second;
    squares += (score - other->second) * (score - other->second);
  }
  if (both < kLeastAnswers) return "";
  const auto n = static_cast<double>(both);
  const double loss = sum / n;
  const double half = kNormalQuantile975 * std::sqrt(std::max(0.0, squares / n - loss * loss) / n);
  if (loss + half > gain_floor_) return "";
  // Where no question differs the interval has no width, which says too much of so few.
  const std::string lost =
      squares == 0 ? fmt::format("none is lost, though {} could be without being seen on so few",
                                 percent(wilson_bounds(0, both).second, 0))
                   : fmt::format("the loss is {}", points_with_range(loss, loss - half, loss + half));
  return fmt::format(
      "the even schedule of {} samples already does what dense attention does: {} and {} of {} training questions "
      "are right, {}; a learned one could gain nothing worth {:.1f} points; try a smaller --total, or a larger "
      "--preflight for a closer look; {}",
      total_, even.right, dense.right, both, lost, 100 * gain_floor_, kHowToGoOn);
}

std::string Preflight::stop_reason() const {
  if (measured_[0].answered() < kLeastAnswers) return "";
  std::string reason = dense_fails();
  return reason.empty() ? nothing_to_gain() : reason;
}

std::vector<std::string> Preflight::warnings() const {
  const Measured& dense = measured_[0];
  if (dense.answered() == 0) return {};
  // While a reply grows from nothing to its length, half of it stands beside the prompt on average.
  const double keys =
      (static_cast<double>(dense.prompt_tokens) + static_cast<double>(dense.output_tokens) / 2) /
      static_cast<double>(dense.answered());
  const int32_t most = *std::ranges::max_element(even_);
  if (most <= keys) return {};
  return {fmt::format(
      "an even share of the total is {} samples a layer, but a token attends to {:.0f} keys on average: nothing is "
      "sampled there, it costs more than dense attention; try a smaller --total or longer prompts",
      most, keys)};
}

wire::Preflight Preflight::describe(bool done,
                                    const std::map<std::string, int64_t, std::less<>>& at_once) const {
  wire::Preflight message;
  message.set_wanted(wanted_);
  for (size_t i = 0; i < kLabels.size(); ++i) {
    const Measured& measured = measured_[i];
    wire::PreflightSchedule& row = *message.add_schedules();
    row.set_label(std::string(kLabels[i]));
    row.set_answered(measured.answered());
    row.set_correct(measured.right);
    row.set_mean(measured.mean());
    row.set_cut_off(measured.cut_off);
    row.set_no_answer(measured.no_answer);
    row.set_prompt_tokens(measured.prompt_tokens);
    row.set_output_tokens(measured.output_tokens);
  }
  message.set_done(done);
  message.set_worker_seconds(worker_seconds());
  // A divergence generates nothing: a pass over the text of a reply takes no longer than to write one.
  message.set_run_worker_seconds(run_worker_seconds(reply_questions_ + divergence_questions_, {}));
  const double least = run_worker_seconds(reply_questions_, at_once);
  if (least < message.run_worker_seconds()) message.set_run_worker_seconds_least(least);
  message.set_run_episodes(episodes_);
  message.set_cost(message.run_worker_seconds() / 3600 * price_per_hour_);
  if (done) message.set_stop_reason(stop_reason());
  message.set_ignored(ignored_);
  for (std::string& warning : warnings()) *message.add_warnings() = std::move(warning);
  return message;
}

}  // namespace allot::aggregator
