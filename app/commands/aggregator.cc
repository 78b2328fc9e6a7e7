// allot aggregator: serves one run to workers. It asks the policy, grants leases and keeps the history.
// Meanwhile a second thread keeps the TensorBoard events up to date, and writes schedule.json and report.html
// when the run is finished. Other threads answer over HTTP (app/live).
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <ratio>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>

#include "aggregator/backup_schedule.h"
#include "aggregator/http_server.h"
#include "aggregator/live_state.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "aggregator/service.h"
#include "app/cli/as_usage.h"
#include "app/cli/command.h"
#include "app/cli/open_files.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/commands/run_results.h"
#include "app/live/live_server.h"
#include "app/report/tensorboard_events.h"
#include "app/run/listen_options.h"
#include "app/run/model_options.h"
#include "app/run/resume.h"
#include "app/run/run_directory.h"
#include "app/run/run_spec_builder.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace allot::app {
namespace {

using Seconds = std::chrono::duration<double>;

// Follows the run's history over its own connection and writes the files for people. It hardly slows the
// service down: after each round it rests at least twenty times as long as the round took.
class ResultsWriter {
 public:
  ResultsWriter(std::filesystem::path run, std::shared_ptr<const aggregator::LiveState> live)
      : run_(std::move(run)), live_(std::move(live)), thread_([this](std::stop_token stop) { work(stop); }) {}

 private:
  void work(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any wake;
    while (true) {
      const auto start = std::chrono::steady_clock::now();
      // A last round after the request to stop makes the files agree with the history.
      const bool last = stop.stop_requested();
      try {
        round();
        if (last) save_page();
      } catch (const Error& error) {
        spdlog::warn("the results could not be written: {}", error.what());
        events_.reset();  // what the files hold must be read again
        written_.reset();
      }
      if (last) return;
      const Seconds rest = std::max(Seconds(5), 20 * Seconds(std::chrono::steady_clock::now() - start));
      std::unique_lock lock(mutex);
      wake.wait_for(lock, stop, rest, [] { return false; });
    }
  }

  void round() {
    // Checked before the history is read, so that all of a finished run is read.
    const auto snapshot = live_->snapshot();
    const bool finished =
        snapshot != nullptr && snapshot->status.stage() == name(aggregator::Stage::kFinished);
    if (!events_) events_.emplace(run_, tensorboard_directory(run_));
    events_->update();
    if (!finished || written_ == snapshot->status.episodes_wanted()) return;
    write_results(run_);
    save_page();
    written_ = snapshot->status.episodes_wanted();
    const std::string& reason = snapshot->status.preflight().stop_reason();
    if (!reason.empty() && !snapshot->status.preflight().ignored()) {
      spdlog::error("stopped before learning: {}; wrote {}", reason, report_file(run_).string());
      return;
    }
    spdlog::info("the run is finished; wrote {} and {}", schedule_file(run_).string(),
                 report_file(run_).string());
  }

  void save_page() const {
    if (const auto snapshot = live_->snapshot())
      write_file_atomically(page_file(run_), saved_page(*snapshot));
  }

  std::filesystem::path run_;
  std::shared_ptr<const aggregator::LiveState> live_;
  std::optional<TensorboardFollower> events_;
  std::optional<int64_t>
      written_;  // how many learning episodes the finished run wanted whose results are written
  std::jthread thread_;
};

// A file of the run directory that names an address while the aggregator listens there.
class Announcement {
 public:
  Announcement(std::filesystem::path file, const std::string& address) : file_(std::move(file)) {
    write_file_atomically(file_, address + "\n");
  }
  ~Announcement() {
    std::error_code ignored;
    std::filesystem::remove(file_, ignored);
  }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  std::filesystem::path file_;
};

// An address at which the run can be read over HTTP. It answers from its construction on, so that probes
// learn that a long history is being read, and is announced in a file once the run is served.
class ReadableAddress {
 public:
  ReadableAddress(const std::string& option, const aggregator::HttpServer::Handlers& handlers,
                  const aggregator::HttpLimits& limits, std::filesystem::path file)
      : address_(as_usage([&] { return aggregator::parse_http_address(option); })),
        server_(address_, handlers, limits),
        file_(std::move(file)) {}

  void announce(std::string_view what) {
    announcement_.emplace(file_, server_.url());
    spdlog::info("{} at {}{}", what, server_.url(),
                 address_.loopback() ? "" : "; whoever reaches this address can read it");
  }

 private:
  aggregator::HttpAddress address_;
  aggregator::HttpServer server_;
  std::filesystem::path file_;
  std::optional<Announcement> announcement_;
};

// What probes and Prometheus alone take: a reply is some 20 KB, and one in a second is much.
constexpr aggregator::HttpLimits kMetricsLimits = {
    .most_connections = 128, .most_connections_of_address = 64, .most_waiting_bytes = size_t{4} << 20};
// An option's value for no address.
constexpr const char* kOff = "off";

}  // namespace

int run_aggregator(std::span<const std::string> arguments) {
  RunOptions run;
  std::string http = "127.0.0.1:*";
  std::string metrics = kOff;
  aggregator::ServiceOptions service_options;
  OptionSet set("aggregator", "serve a run to workers: the learner, its leases and its history",
                "allot aggregator --run runs/cluster --bind tcp://0.0.0.0:5557 --key server.key "
                "--allow keys.txt --model assets/tiny-gsm --data assets/tiny-gsm/train.jsonl "
                "--heldout assets/tiny-gsm/heldout.jsonl --total 64");
  ListenOptions listening{.bind = service_options.server.bind};
  declare_listen_options(&set, &listening,
                         "address to listen on; port * lets the system choose one, which DIR/endpoint names");
  double backup_every = 0;
  set.real("backup-every", &backup_every, 0, 10'000, "HOURS",
           "copy the history and the spec into DIR/backups this often, while the run goes on; 0: never");
  int32_t backups_kept = 7;
  set.integer("backups-kept", &backups_kept, 1, 10'000, "N",
              "how many of these copies stay; older ones are removed");
  set.text(
      "http", &http, "ADDRESS:PORT",
      "serve the live page, /metrics, /healthz, /readyz and /api/run at this address, read-only; port * lets "
      "the system choose one, which DIR/http names; off serves nothing");
  set.text(
      "metrics", &metrics, "ADDRESS:PORT",
      "serve /metrics, /healthz and /readyz, without the page, at this address as well, so that one which "
      "Prometheus reaches need not show the page; DIR/metrics names it; off serves nothing");
  set.flag("exit-when-finished", &service_options.exit_when_finished,
           "exit when the run is finished and the workers know it");
  double linger = 0;
  set.real("linger", &linger, 0, 1e9, "S",
           "with --exit-when-finished: seconds to show the finished run on the live page before that");
  declare_run_options(set, &run);
  wire::RunSpec spec;
  Changes changes;
  const auto define = [&] {
    if (holds_run(run.run)) {
      changes = resume_run(set, run, &spec);
    } else {
      spec = options_as_usage([&] { return build_run_spec(run); });
    }
  };
  set.resolve_with([&] {
    if (!set.dry_run()) return;
    if (holds_run(run.run)) {
      define();
      run = options_of_run(spec, run.run);
      return;
    }
    if (run.model.empty()) return;
    // A config is often written on a machine that does not have the cluster's paths.
    if (const auto missing = missing_model(run.model)) {
      spdlog::warn("{}; values that depend on the model and the data are not resolved", *missing);
      return;
    }
    define();
    resolve(spec, &run);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  listen(listening, &service_options);

  const auto& stop = watch_stop_signals();
  // Each worker's connection is an open file.
  const int64_t open_files = raise_open_files();
  service_options.run_directory = run.run;
  service_options.build = version();
  const auto live = std::make_shared<aggregator::LiveState>("the history of the run is being read");
  service_options.live = live;
  std::optional<ReadableAddress> page_address, metrics_address;
  if (http != kOff)
    page_address.emplace(http, live_handlers(live, run.run), aggregator::HttpLimits{},
                         aggregator::http_path(run.run));
  if (metrics != kOff)
    metrics_address.emplace(metrics, metrics_handlers(live, run.run), kMetricsLimits,
                            aggregator::metrics_path(run.run));
  define();
  service_options.wishes = changes.controls;
  service_options.stay = std::chrono::duration_cast<Duration>(Seconds(linger));
  std::optional<aggregator::Service> opened;
  try {
    opened.emplace(spec, std::move(service_options));
  } catch (const InvalidArgument& fault) {  // of the address or the run, which are what the options say
    throw UsageError(fault.what());
  }
  aggregator::Service& service = *opened;
  spdlog::info("up to {} files can be open, about as many workers can connect", open_files);
  // The page's last: whoever waits for its file finds those of all other addresses.
  if (metrics_address) metrics_address->announce("/metrics, /healthz and /readyz alone");
  if (page_address) page_address->announce("live page with /metrics, /healthz, /readyz and /api/run");
  const ResultsWriter writer(run.run, live);
  std::optional<aggregator::BackupKeeper> backups;
  if (backup_every > 0) {
    const auto every =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::ratio<3600>>(backup_every));
    backups.emplace(aggregator::BackupOptions{run.run, every, backups_kept});
  }
  service.run(stop);
  return 0;
}

}  // namespace allot::app
