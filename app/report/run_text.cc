#include "app/report/run_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "base/number_text.h"
#include "base/proportion.h"
#include "wire/messages.pb.h"

namespace allot::app {
namespace {

std::string schedule_line(const wire::PreflightSchedule& row) {
  const auto answered = static_cast<double>(row.answered());
  const auto share = [&](int64_t count) { return percent(static_cast<double>(count) / answered, 0); };
  std::string accuracy = percent(row.mean());
  // With partial credit the messages have no spread, so there is no interval.
  if (std::abs(row.mean() * answered - static_cast<double>(row.correct())) < 1e-6) {
    const auto [low, high] = wilson_bounds(row.correct(), row.answered());
    accuracy = percent_with_range(row.mean(), low, high);
  }
  return fmt::format("{:<8} {} of {} right = {}; {} cut off, {} without an answer, {:.0f} tokens a reply",
                     row.label(), row.correct(), row.answered(), accuracy, share(row.cut_off()),
                     share(row.no_answer()), static_cast<double>(row.output_tokens()) / answered);
}

std::string estimate_line(const wire::Preflight& preflight, int64_t workers) {
  int64_t tokens = 0;
  for (const wire::PreflightSchedule& row : preflight.schedules()) tokens += row.output_tokens();
  std::string line =
      fmt::format("{:.0f} tokens/s a worker", static_cast<double>(tokens) / preflight.worker_seconds());
  if (preflight.run_worker_seconds() <= 0) return line;
  // Small batches do not fill a GPU.
  const auto takes = [&](double shared_by) {
    const std::string most = duration_text(preflight.run_worker_seconds() / shared_by);
    return preflight.run_worker_seconds_least() <= 0
               ? "about " + most
               : fmt::format("{} to {}", duration_text(preflight.run_worker_seconds_least() / shared_by),
                             most);
  };
  line += fmt::format(", so {} episodes and the verification take {} of one worker", preflight.run_episodes(),
                      takes(1));
  if (workers > 1) line += fmt::format(", {} of {} workers", takes(static_cast<double>(workers)), workers);
  if (preflight.cost() > 0) line += fmt::format("; cost {:.2f}", preflight.cost());
  return line;
}

}  // namespace

std::vector<std::string> preflight_lines(const wire::Preflight& preflight, int64_t workers) {
  std::vector<std::string> lines;
  for (const wire::PreflightSchedule& row : preflight.schedules()) {
    if (row.answered() > 0) lines.push_back(schedule_line(row));
  }
  if (!lines.empty() && preflight.worker_seconds() > 0) lines.push_back(estimate_line(preflight, workers));
  for (const std::string& warning : preflight.warnings()) lines.push_back("warning: " + warning);
  if (!preflight.stop_reason().empty()) {
    lines.push_back((preflight.ignored() ? "ignored: " : "stopped: ") + preflight.stop_reason());
  }
  return lines;
}

std::string capital_of(kernels::BudgetUnit unit) {
  return unit == kernels::BudgetUnit::kRows ? "Rows" : "Samples";
}

std::string budget_title(kernels::BudgetUnit unit) {
  return unit == kernels::BudgetUnit::kRows ? "Value rows per KV head" : "Samples per query head";
}

}  // namespace allot::app
