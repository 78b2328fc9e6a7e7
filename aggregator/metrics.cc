#include "aggregator/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "aggregator/history_files.h"
#include "aggregator/run_directory.h"
#include "episode/reward_kind.h"
#include "episode/samples.h"

namespace allot::aggregator {
namespace {

// A label value, escaped as the format requires.
std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

std::string label(std::string_view name, std::string_view value) {
  return fmt::format("{{{}=\"{}\"}}", name, escaped(value));
}

// A family of samples under one HELP and TYPE.
class Exposition {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text_), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  }
  template <class Number>
  void sample(Number value, std::string_view labels = "") {
    fmt::format_to(std::back_inserter(text_), "{}{} {}\n", name_, labels, value);
  }
  template <class Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    family(name, "gauge", help);
    sample(value);
  }
  template <class Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    family(name, "counter", help);
    sample(value);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    family(name, "histogram", help);
    for (size_t i = 0; i < Histogram::kBounds; ++i) {
      line("_bucket", fmt::format("{{le=\"{}\"}}", histogram.bounds()[i]), histogram.up_to(i));
    }
    line("_bucket", "{le=\"+Inf\"}", histogram.count());
    line("_sum", "", histogram.sum());
    line("_count", "", histogram.count());
  }

  std::string take() { return std::move(text_); }

 private:
  template <class Number>
  void line(std::string_view suffix, std::string_view labels, Number value) {
    fmt::format_to(std::back_inserter(text_), "{}{}{} {}\n", name_, suffix, labels, value);
  }

  std::string name_;
  std::string text_;
};

// Counters that are not in kLeaseOutcomes have metrics of their own.
struct OwnCounter {
  std::string_view field;
  std::string_view metric;
  std::string_view help;
};
constexpr OwnCounter kOwnCounters[] = {
    {"granted", "allot_leases_granted_total", "Leases handed to workers."},
    {"set_aside", "allot_episodes_set_aside_total", "Episodes given up after their last attempt."},
    {"poisoned", "allot_episodes_poisoned_total",
     "Of those given up: the episode failed on different workers."},
    {"preempted", "allot_leases_preempted_total", "Of those released: the worker's machine is taken away."},
    {"crashed", "allot_leases_crashed_total", "Leases whose worker broke while it held them."},
    {"timed_out", "allot_leases_timed_out_total", "Of those expired: the deadline passed."},
    {"answers_kept", "allot_answers_kept_total", "Questions not asked again after a lease was given back."},
    {"malformed", "allot_messages_malformed_total", "Messages of peers that could not be read."},
    {"not_allowed", "allot_messages_not_allowed_total",
     "Messages for which the sender's key has not the role."},
    {"mismatched", "allot_workers_refused_total",
     "Hellos of workers that were refused for their model, data files or name."},
    {"foreign", "allot_results_foreign_total",
     "Of those rejected: for a lease of another worker, or for one that was never granted."},
    {"refused_connections", "allot_connections_refused_total",
     "Connections that showed no key or one that is not on the allow-list."},
};
// The ways in which a lease, or a result for it, can end. Counters that count a part of one of these ("of
// those expired") are separate metrics, so that these can be added up.
constexpr std::string_view kLeaseOutcomes[] = {"accepted",  "expired", "released", "late",
                                               "duplicate", "stale",   "failed",   "rejected"};

// Writes every field of Counters, including those that later releases add.
void write_counters(Exposition* out, const wire::Counters& counters) {
  const auto& reflection = *counters.GetReflection();
  const auto& descriptor = *counters.GetDescriptor();
  out->family("allot_leases_total", "counter", "Leases and results by what became of them.");
  for (const std::string_view outcome : kLeaseOutcomes) {
    const auto* field = descriptor.FindFieldByName(std::string(outcome));
    if (field != nullptr) out->sample(reflection.GetInt64(counters, field), label("outcome", outcome));
  }
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto* field = descriptor.field(i);
    const std::string& name = field->name();
    if (std::ranges::find(kLeaseOutcomes, name) != std::end(kLeaseOutcomes)) continue;
    const auto* own = std::ranges::find(kOwnCounters, name, &OwnCounter::field);
    const int64_t count = reflection.GetInt64(counters, field);
    if (own != std::end(kOwnCounters)) {
      out->counter(own->metric, own->help, count);
    } else {
      out->counter(fmt::format("allot_{}_total", name), fmt::format("The run's counter '{}'.", name), count);
    }
  }
}

void write_run(Exposition* out, const wire::Status& status) {
  out->family("allot_run_info", "gauge", "Which run this is; always 1.");
  out->sample(
      1,
      fmt::format("{{run_id=\"{}\",model=\"{}\",task=\"{}\",estimator=\"{}\"{}}}", escaped(status.run_id()),
                  escaped(status.model()), escaped(status.task()), escaped(status.estimator()),
                  status.unit().empty() ? "" : fmt::format(",unit=\"{}\"", escaped(status.unit()))));
  out->family("allot_stage", "gauge", "1 for the stage the run is in, 0 for the others.");
  for (const std::string_view stage : {"preflight", "learn", "verify", "evaluate", "finished"}) {
    out->sample(status.stage() == stage ? 1 : 0, label("stage", stage));
  }
  out->gauge("allot_paused", "1 while the run is paused.", status.paused() ? 1 : 0);
  out->gauge("allot_aggregator_epoch", "Starts of an aggregator on this run directory.", status.epoch());
  out->counter("allot_learning_episodes_total", "Learning episodes used so far.", status.episodes_done());
  out->gauge("allot_learning_episodes_wanted", "Learning episodes the run asks for.",
             status.episodes_wanted());
  out->gauge("allot_leases_live", "Leases that workers hold now.", status.episodes_running());
  out->gauge("allot_episodes_per_second", "Recent rate at which episodes are told.",
             status.episodes_per_second());
  if (status.eta_s() >= 0) {
    out->gauge("allot_eta_seconds", "Time until the whole run is finished; absent while unknown.",
               status.eta_s());
  }
  out->gauge("allot_run_elapsed_seconds", "Time spent on the run, over all starts.", status.elapsed_s());
  const WorkerCounts workers = count_workers(status);
  out->family("allot_workers", "gauge",
              "Workers by what they do: busy (holds leases), idle, silent (for longer than a lease).");
  out->sample(workers.busy, label("state", "busy"));
  out->sample(workers.idle, label("state", "idle"));
  out->sample(workers.silent, label("state", "silent"));
  const auto quarantined = std::ranges::count_if(
      status.workers(), [](const wire::WorkerStatus& worker) { return worker.quarantined_ms() > 0; });
  out->gauge("allot_workers_quarantined", "Workers that get no leases for now, because their episodes fail.",
             quarantined);
  out->gauge("allot_workers_cordoned", "Workers that get no leases, because an operator has cordoned them.",
             std::ranges::count_if(status.workers(), &wire::WorkerStatus::cordoned));
  const WorkerLoads loads = sum_loads(status);
  out->gauge("allot_workers_prompt_tokens_per_second", "Prompt tokens of answered questions, by all workers.",
             loads.prompt_tokens_per_second);
  out->gauge("allot_workers_output_tokens_per_second", "Tokens of replies, by all workers.",
             loads.output_tokens_per_second);
  out->gauge("allot_workers_busy_ratio", "Share of their time that workers have something to run, 0 to 1.",
             loads.busy);
  out->gauge("allot_workers_batch_use_ratio", "Share of the batch in use while workers are busy, 0 to 1.",
             loads.batch_use);
  out->gauge(
      "allot_workers_memory_use_ratio",
      "Share of its GPU's memory, or of its machine's, that the worker with the least room uses, 0 to 1.",
      loads.fullest_memory);
  out->counter("allot_checked_questions_total", "Questions that workers of two holders graded.",
               status.cross_check().questions());
  out->counter("allot_check_disagreements_total", "Of those: the two reported different grades.",
               status.cross_check().disagreements());
}

void write_learner(Exposition* out, const wire::Status& status) {
  const RewardKindRow* kind = find_reward_kind(status.reward_kind());
  const std::string help = kind == nullptr
                               ? "Mean reward of the last 20 learning episodes."
                               : fmt::format("Mean reward ({}) of the last 20 learning episodes, {} to {}.",
                                             kind->measure, kind->low, kind->high);
  out->gauge("allot_mean_reward_recent", help, status.mean_reward_recent());
  out->gauge("allot_policy_version", "Updates of the policy.", status.policy_version());
  out->gauge("allot_policy_entropy", "Entropy of the layers' shares of the budget, in nats.",
             status.entropy());
  out->family("allot_policy_number", "gauge", "What the learner describes of itself as a whole, by name.");
  for (const wire::NamedNumber& number : status.policy_numbers()) {
    out->sample(number.value(), label("name", number.name()));
  }
  out->family("allot_schedule_samples", "gauge",
              status.unit() == "rows"
                  ? "Value rows per KV head and token that the policy recommends for a layer."
                  : "Samples per query head and token that the policy recommends for a layer.");
  for (int layer = 0; layer < status.recommended_size(); ++layer) {
    if (status.recommended(layer) == kExactLayer) continue;  // draws no samples
    out->sample(status.recommended(layer), label("layer", std::to_string(layer)));
  }
  out->family("allot_score_questions", "gauge", "Held-out questions of a verified schedule.");
  for (const wire::Score& score : status.scores()) {
    const auto labels = [&](std::string_view state) {
      return fmt::format("{{schedule=\"{}\",state=\"{}\"}}", escaped(score.label()), state);
    };
    out->sample(score.wanted(), labels("wanted"));
    out->sample(score.answered(), labels("answered"));
    out->sample(score.correct(), labels("correct"));
  }
}

void write_service(Exposition* out, const Snapshot& snapshot) {
  const ServiceFigures& figures = snapshot.figures;
  out->counter("allot_messages_received_total", "Messages of peers since the process started.",
               figures.messages);
  out->counter("allot_messages_over_rate_total",
               "Of those received: not read, because the sender is above its rate.", figures.over_rate);
  out->counter("allot_replies_sent_total", "Replies since the process started.", figures.replies);
  out->counter("allot_history_records_total", "Records committed since the process started.",
               figures.records);
  // By the wall clock of now, since they are compared with the time of another machine.
  const auto wall_seconds = [&](Timestamp time) {
    return std::chrono::duration<double>((time + snapshot.wall_ahead).time_since_epoch()).count();
  };
  out->gauge("allot_last_progress_timestamp_seconds",
             "When the last episode was told; the start of the process before that.",
             wall_seconds(figures.last_progress));
  out->gauge("allot_snapshot_timestamp_seconds", "When the service loop took these figures.",
             wall_seconds(snapshot.at));
  out->histogram("allot_episode_duration_seconds", "Time a worker needed for an episode.",
                 figures.episode_seconds);
  out->histogram("allot_reply_duration_seconds",
                 "From the start of a round of the service loop to a reply of it, commit included.",
                 figures.reply_seconds);
  out->histogram("allot_history_commit_duration_seconds", "Time of one commit to the history.",
                 figures.commit_seconds);
}

void write_process(Exposition* out, const ProcessFigures& process, const StorageFigures& storage) {
  out->gauge("allot_history_bytes", "Size of the history with its write-ahead log.", storage.history_bytes);
  out->gauge("allot_run_disk_available_bytes", "Free space of the disk under the run directory.",
             storage.available_bytes);
  out->gauge("allot_run_disk_size_bytes", "Size of the disk under the run directory.", storage.disk_bytes);
  out->gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes);
  out->gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_bytes);
  out->counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.",
               process.cpu_seconds);
  out->gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.",
             process.start_time);
  out->gauge("process_open_fds", "Number of open file descriptors.", process.open_files);
  out->gauge("process_max_fds", "Maximum number of open file descriptors.", process.max_files);
}

// Seconds since the Unix epoch at which the machine started; 0 when /proc does not say.
double boot_time() {
  std::ifstream stat("/proc/stat");
  for (std::string word; stat >> word;) {
    double seconds = 0;
    if (word == "btime" && stat >> seconds) return seconds;
  }
  return 0;
}

int64_t file_bytes(const std::filesystem::path& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(size);
}

}  // namespace

bool is_silent(const wire::WorkerStatus& worker, const wire::Status& status) {
  return status.lease_ms() > 0 && worker.last_seen_ms() > status.lease_ms();
}

WorkerCounts count_workers(const wire::Status& status) {
  WorkerCounts counts;
  for (const wire::WorkerStatus& worker : status.workers()) {
    if (is_silent(worker, status)) {
      ++counts.silent;
    } else {
      ++(worker.leases() > 0 ? counts.busy : counts.idle);
    }
  }
  counts.silent += status.workers_unlisted();  // they are listed last
  return counts;
}

WorkerLoads sum_loads(const wire::Status& status) {
  WorkerLoads sums;
  double busy_seconds = 0, slot_seconds = 0;
  for (const wire::WorkerStatus& worker : status.workers()) {
    if (!worker.has_load() || is_silent(worker, status)) continue;
    const wire::WorkerLoad& load = worker.load();
    ++sums.workers;
    sums.prompt_tokens_per_second += static_cast<double>(load.prompt_tokens()) / load.seconds();
    sums.output_tokens_per_second += static_cast<double>(load.output_tokens()) / load.seconds();
    sums.busy += load.busy_seconds() / load.seconds();
    busy_seconds += load.busy_seconds();
    slot_seconds += load.slot_seconds();
    if (load.memory_total_bytes() > 0) {
      sums.fullest_memory = std::max(sums.fullest_memory, static_cast<double>(load.memory_used_bytes()) /
                                                              static_cast<double>(load.memory_total_bytes()));
    }
  }
  if (sums.workers > 0) sums.busy /= static_cast<double>(sums.workers);
  if (busy_seconds > 0) sums.batch_use = slot_seconds / busy_seconds;
  return sums;
}

ProcessFigures read_process_figures() {
  ProcessFigures figures;
  // /proc/self/stat: the command, which may hold anything, is in parentheses; the fields after it are plain.
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const size_t after_command = text.rfind(')');
  long user = 0, system = 0;
  unsigned long long started = 0, virtual_bytes = 0;
  long resident_pages = 0;
  const char* fields = after_command == std::string::npos ? "" : text.c_str() + after_command + 1;
  if (std::sscanf(
          fields,
          " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld %*d %*d %*d %*d %*d %*d %llu %llu %ld", &user,
          &system, &started, &virtual_bytes, &resident_pages) == 5) {
    const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
    figures.cpu_seconds = static_cast<double>(user + system) / ticks;
    figures.start_time = boot_time() + static_cast<double>(started) / ticks;
    figures.virtual_bytes = static_cast<int64_t>(virtual_bytes);
    figures.resident_bytes = int64_t{resident_pages} * ::sysconf(_SC_PAGESIZE);
  }
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end;
       at.increment(error)) {
    ++figures.open_files;
  }
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.max_files = static_cast<int64_t>(limit.rlim_cur);
  return figures;
}

StorageFigures read_storage_figures(const std::filesystem::path& run_directory) {
  StorageFigures figures;
  const std::filesystem::path history = history_path(run_directory);
  figures.history_bytes = file_bytes(history) + file_bytes(log_path(history));
  struct statvfs disk = {};
  if (::statvfs(run_directory.c_str(), &disk) == 0) {
    figures.available_bytes = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    figures.disk_bytes = static_cast<int64_t>(disk.f_blocks * disk.f_frsize);
  }
  return figures;
}

std::string prometheus_text(const Snapshot* snapshot, bool ready, const std::string& build,
                            const ProcessFigures& process, const StorageFigures& storage) {
  Exposition out;
  out.family("allot_build_info", "gauge", "Release of the aggregator; always 1.");
  out.sample(1, label("version", build));
  out.gauge("allot_ready", "1 while workers are served.", ready ? 1 : 0);
  if (snapshot != nullptr) {
    write_run(&out, snapshot->status);
    write_learner(&out, snapshot->status);
    write_counters(&out, snapshot->status.counters());
    write_service(&out, *snapshot);
  }
  write_process(&out, process, storage);
  return out.take();
}

}  // namespace allot::aggregator
