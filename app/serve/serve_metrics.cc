#include "app/serve/serve_metrics.h"

#include <fmt/format.h>

#include <string_view>

namespace allot::app {
namespace {

void add_metric(std::string* text, std::string_view type, std::string_view metric, std::string_view help,
                double value) {
  *text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}\n", metric, help, type, value);
}

}  // namespace

void ServeMetrics::add_answer(std::chrono::duration<double> took) {
  const std::lock_guard lock(mutex_);
  ++answers_;
  answer_seconds_ += took.count();
}

void ServeMetrics::add_error(int status) {
  const std::lock_guard lock(mutex_);
  ++errors_[status];
}

std::string ServeMetrics::text(const BatcherCounters& counters) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto counter = [&](std::string_view metric, std::string_view help, auto value) {
    add_metric(&text, "counter", metric, help, static_cast<double>(value));
  };
  add_metric(&text, "gauge", "allot_serve_requests_running", "Replies in the engine, decoded or waiting.",
             static_cast<double>(counters.running));
  text += "# HELP allot_serve_requests_total Replies asked for, by what became of them.\n";
  text += "# TYPE allot_serve_requests_total counter\n";
  for (const auto& [outcome, value] : {std::pair{"finished", counters.finished},
                                       {"cancelled", counters.cancelled},
                                       {"refused", counters.refused},
                                       {"failed", counters.failed}}) {
    text += fmt::format("allot_serve_requests_total{{outcome=\"{}\"}} {}\n", outcome, value);
  }
  counter("allot_serve_prompt_tokens_total", "Prompt tokens of finished replies.", counters.prompt_tokens);
  counter("allot_serve_output_tokens_total", "Tokens of finished replies.", counters.output_tokens);
  counter("allot_serve_steps_total", "Forward passes of the engine.", counters.steps);
  counter("allot_serve_step_requests_total", "Replies in the engine, summed over forward passes.",
          counters.step_requests);
  text += "# HELP allot_serve_errors_total Requests answered with an error, by HTTP status.\n";
  text += "# TYPE allot_serve_errors_total counter\n";
  for (const auto& [status, value] : errors_)
    text += fmt::format("allot_serve_errors_total{{status=\"{}\"}} {}\n", status, value);
  text += "# HELP allot_serve_answer_seconds Time from a request's body to the end of its answer.\n";
  text += "# TYPE allot_serve_answer_seconds summary\n";
  text += fmt::format("allot_serve_answer_seconds_sum {}\nallot_serve_answer_seconds_count {}\n",
                      answer_seconds_, answers_);
  return text;
}

}  // namespace allot::app
