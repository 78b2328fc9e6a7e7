#include "app/view/status_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "aggregator/metrics.h"
#include "app/report/run_text.h"
#include "app/view/progress.h"
#include "app/view/status_view.h"
#include "app/view/terminal_text.h"
#include "base/number_text.h"
#include "episode/samples.h"

namespace allot::app {
namespace {

std::string heading(const wire::Status& status) {
  const double share = status.episodes_wanted() > 0 ? static_cast<double>(status.episodes_done()) /
                                                          static_cast<double>(status.episodes_wanted())
                                                    : 0;
  const Answered questions = answered(status);
  std::string text = status.paused() ? "paused in " + status.stage() : status.stage();
  if (status.stage() == "learn") {
    text += fmt::format("  {} of {} episodes ({})", status.episodes_done(), status.episodes_wanted(),
                        percent(share));
  } else {
    text += fmt::format("  {} of {} {}answers", questions.done, questions.wanted,
                        status.stage() == "preflight" || status.stage() == "evaluate" ? "" : "held-out ");
  }
  if (status.stage() != "finished" && !status.paused()) text += "  " + eta_text(status);
  if (status.target_reward() > 0) text += "  target reward " + reward_text(status, status.target_reward());
  return text + fmt::format("  {} spent", duration_text(status.elapsed_s()));
}

std::string learner_line(const wire::Status& status) {
  return fmt::format("policy   version {}{}, reward {} lately, {:.2f} episodes/s", status.policy_version(),
                     policy_numbers(status), recent_reward_text(status).value_or("none"),
                     status.episodes_per_second());
}

std::string worker_line(const wire::Status& status) {
  const aggregator::WorkerCounts counts = aggregator::count_workers(status);
  if (counts.all() == 0) return "workers  none connected";
  const auto waiting = std::ranges::count_if(
      status.workers(), [](const wire::WorkerStatus& worker) { return worker.quarantined_ms() > 0; });
  return fmt::format("workers  {}: {} busy, {} idle, {} silent{}; {} leases held", counts.all(), counts.busy,
                     counts.idle, counts.silent, waiting > 0 ? fmt::format(", {} failing", waiting) : "",
                     status.episodes_running());
}

std::string counter_line(const wire::Status& status) {
  std::string text;
  const auto& counters = status.counters();
  const auto& reflection = *counters.GetReflection();
  for (int i = 0; i < counters.GetDescriptor()->field_count(); ++i) {
    const auto* field = counters.GetDescriptor()->field(i);
    const int64_t count = reflection.GetInt64(counters, field);
    if (count != 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field->name(), count);
  }
  return "leases   " + (text.empty() ? "none yet" : text);
}

std::vector<std::string> score_lines(const wire::Status& status) {
  std::vector<std::string> lines;
  for (const wire::Score& score : status.scores()) {
    std::string line = fmt::format("{:<8} {} of {} right", score.label(), score.correct(), score.answered());
    if (score.has_mean()) {
      line += " = " + score_text(score.mean());
    } else if (const auto interval = interval_of(score)) {
      line += " = " + percent_with_range(mean_score(score), interval->low, interval->high);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> curve_lines(const wire::Status& status, size_t columns) {
  const wire::LearningCurve& curve = status.curve();
  if (curve.mean_size() == 0) return {"reward   the curve begins with the first episode"};
  const std::vector<double> mean(curve.mean().begin(), curve.mean().end());
  const auto [low, high] = std::ranges::minmax(mean);
  const size_t room = columns > 9 ? columns - 9 : 1;
  return {
      "reward   " + sparkline(mean, low, high, room),
      fmt::format("         mean of {} episodes, {} to {}; now {} ({} to {})",
                  std::max(curve.window(), curve.episodes_per_point()), reward_text(status, low),
                  reward_text(status, high), reward_text(status, mean.back()),
                  reward_text(status, *curve.low().rbegin()), reward_text(status, *curve.high().rbegin()))};
}

// A bar a layer while there are rows, else one character a layer.
std::vector<std::string> schedule_lines(const wire::Status& status, size_t columns, size_t rows) {
  const auto& samples = status.recommended();
  if (samples.empty()) return {};
  const auto most = std::max(1, *std::ranges::max_element(samples));
  if (static_cast<size_t>(samples.size()) > rows) {
    std::vector<double> values;
    for (const int32_t layer : samples) values.push_back(std::max(0, layer));  // an exact layer has no bar
    return {fmt::format("schedule layers 0 to {}, at most {} {}", samples.size() - 1, most,
                        status.unit().empty() ? "samples" : status.unit()),
            "         " + sparkline(values, 0, most, columns > 9 ? columns - 9 : 1)};
  }
  std::vector<std::string> lines;
  const size_t room = columns > 24 ? columns - 24 : 1;
  for (int layer = 0; layer < samples.size(); ++layer) {
    lines.push_back(fmt::format("layer {:>3} {:>6}  {}", layer, layer_text(samples[layer]),
                                bar(static_cast<double>(samples[layer]) / most, std::min<size_t>(room, 60))));
  }
  return lines;
}

std::vector<std::string> worker_lines(const wire::Status& status, size_t rows) {
  std::vector<const wire::WorkerStatus*> workers;
  for (const wire::WorkerStatus& worker : status.workers()) workers.push_back(&worker);
  std::ranges::sort(workers, {}, [&](const auto* worker) {
    return std::tuple(worker->quarantined_ms() == 0, !worker->cordoned(),
                      !aggregator::is_silent(*worker, status), worker->worker().size(), worker->worker());
  });
  std::vector<std::string> lines;
  for (const wire::WorkerStatus* worker : workers) {
    if (lines.size() + 1 >= rows && lines.size() + 1 < workers.size()) {
      lines.push_back(fmt::format("  and {} more", workers.size() - lines.size()));
      break;
    }
    const std::string remark =
        worker->quarantined_ms() > 0
            ? fmt::format("waits {} after failures: {}",
                          duration_text(static_cast<double>(worker->quarantined_ms()) / 1000),
                          worker->last_failure())
        : worker->cordoned() ? "is cordoned"
                             : worker->device();
    lines.push_back(fmt::format("  {:<20} {:>4} leases {:>8} done  seen {:>6} ago{}  {}", worker->worker(),
                                worker->leases(), worker->episodes_done(),
                                duration_text(static_cast<double>(worker->last_seen_ms()) / 1000),
                                aggregator::is_silent(*worker, status) ? " (silent)" : "", remark));
  }
  return lines;
}

}  // namespace

std::vector<std::string> status_screen(const wire::Status& status, std::string_view notice, ScreenSize size) {
  std::vector<std::string> lines;
  const auto append = [&](const std::vector<std::string>& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (!notice.empty()) lines.emplace_back(notice);
  if (status.run_id().empty()) {  // nothing is known yet
    for (std::string& line : lines) line = fitted(line, size.columns);
    return lines;
  }
  lines.push_back(fmt::format("allot run {}: {} on {}", status.run_id(), status.model(), status.task()));
  lines.push_back(heading(status));
  lines.push_back(learner_line(status));
  lines.push_back(worker_line(status));
  lines.push_back(counter_line(status));
  for (const std::string& line : preflight_lines(status.preflight(), status.workers_size()))
    lines.push_back("before   " + line);
  append(score_lines(status));
  append(curve_lines(status, size.columns));
  // The rest is shared out: half of it to the schedule, what that leaves to the workers.
  const size_t rest = size.rows > lines.size() + 2 ? size.rows - lines.size() - 2 : 2;
  const auto workers = static_cast<size_t>(status.workers_size());
  append(schedule_lines(status, size.columns, std::max(rest / 2, rest - std::min(rest, workers))));
  if (lines.size() < size.rows) append(worker_lines(status, size.rows - lines.size()));
  if (lines.size() > size.rows) lines.resize(size.rows);
  for (std::string& line : lines) line = fitted(line, size.columns);
  return lines;
}

std::string status_line(const wire::Status& status) {
  const aggregator::WorkerCounts counts = aggregator::count_workers(status);
  std::string line = fmt::format("{}  workers {}", heading(status), counts.all());
  if (counts.silent > 0) line += fmt::format(" ({} silent)", counts.silent);
  if (const auto recent = recent_reward_text(status)) line += "  reward " + *recent;
  for (const wire::Score& score : status.scores()) {
    if (score.answered() < 1) continue;
    line += fmt::format("  {} {}", score.label(), score_text(mean_score(score)));
  }
  return line;
}

}  // namespace allot::app
