#include "app/run/local_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iterator>
#include <thread>
#include <utility>

#include "aggregator/run_directory.h"
#include "app/cli/own_executable.h"
#include "app/cli/stop_signal.h"
#include "app/run/grader_option.h"
#include "app/run/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "wire/messages.pb.h"
#include "wire/status_query.h"

namespace allot::app {
namespace {

constexpr auto kListenPatience = std::chrono::seconds(60);
constexpr auto kStopPatience = std::chrono::seconds(60);
constexpr Duration kAnswerTimeout = std::chrono::seconds(2);
// The exit status of a Mismatch (base/error.h).
constexpr int kMismatch = 3;

// The last line of a log that is not empty; it usually says why its process ended.
std::string last_line(const std::filesystem::path& file) {
  std::string text = read_file(file);
  text.erase(text.find_last_not_of(" \n\r\t") + 1);
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

std::vector<WorkerPlace> place_workers(std::span<const Device> devices, int32_t workers_per_device) {
  std::vector<WorkerPlace> places;
  for (const Device& device : devices) {
    for (int32_t number = 0; number < workers_per_device; ++number) {
      places.push_back({.name = fmt::format("worker-{}", places.size() + 1), .device = device.name()});
    }
  }
  return places;
}

LocalCluster::LocalCluster(ClusterOptions options, std::function<void(const std::string&)> say)
    : options_(std::move(options)), say_(std::move(say)) {
  if (options_.threads == 0) {
    const auto workers = static_cast<int32_t>(std::max<size_t>(1, options_.workers.size()));
    options_.threads = std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()) / workers);
  }
  start_aggregator();
  for (const WorkerPlace& place : options_.workers) {
    start(workers_.emplace_back(Member{.name = place.name, .device = place.device}));
  }
}

std::vector<std::string> LocalCluster::command_of(const Member& member) const {
  const std::string run = options_.run.string();
  if (&member == &aggregator_) {
    std::vector<std::string> command = {(own_directory() / "allot").string(),
                                        "aggregator",
                                        "--run",
                                        run,
                                        "--bind",
                                        endpoint_.empty() ? "tcp://127.0.0.1:*" : endpoint_,
                                        "--log-level",
                                        options_.log_level};
    std::ranges::copy(options_.aggregator_options, std::back_inserter(command));
    return command;
  }
  std::vector<std::string> command = {(own_directory() / "allot-model").string(),
                                      "worker",
                                      "--run",
                                      run,
                                      "--name",
                                      member.name,
                                      "--device",
                                      member.device,
                                      "--threads",
                                      std::to_string(options_.threads),
                                      "--exit-when-finished",
                                      "--log-level",
                                      options_.log_level};
  if (options_.max_sequences > 0) {
    command.insert(command.end(), {"--max-sequences", std::to_string(options_.max_sequences)});
  }
  std::ranges::copy(grader_words(options_.grader), std::back_inserter(command));
  return command;
}

void LocalCluster::start(Member& member) {
  member.process.emplace(command_of(member), log_file(options_.run, member.name));
  ++member.starts;
  const std::string place = member.device.empty() ? "" : " on " + member.device;
  say_(fmt::format("{} started{}, process {}", member.name, place, member.process->pid()));
}

template <class Failure>
void LocalCluster::give_up(const Member& member, const std::string& how) {
  const auto log = log_file(options_.run, member.name);
  throw Failure(fmt::format("{} {}: {} (log: {})", member.name, how, last_line(log), log.string()));
}

void LocalCluster::start_aggregator() {
  // Files left by a killed aggregator name ports where nobody listens any more.
  std::filesystem::remove(aggregator::endpoint_path(options_.run));
  std::filesystem::remove(aggregator::http_path(options_.run));
  start(aggregator_);
  const auto deadline = std::chrono::steady_clock::now() + kListenPatience;
  while (true) {
    const auto endpoint = read_endpoint(options_.run);
    const auto page = read_http_url(options_.run);
    if (endpoint && page) {
      endpoint_ = *endpoint;
      say_("live page " + *page);
      return;
    }
    if (const auto ended = aggregator_.process->poll()) give_up<Error>(aggregator_, ended->to_string());
    if (stop_signal() != 0) return;
    if (std::chrono::steady_clock::now() > deadline) {
      give_up<Error>(aggregator_, fmt::format("did not listen within {} seconds", kListenPatience.count()));
    }
    pause_for(std::chrono::milliseconds(10));
  }
}

std::optional<wire::Status> LocalCluster::status() {
  try {
    return wire::query_status(endpoint_, kAnswerTimeout);
  } catch (const NetworkError&) {
    return std::nullopt;
  }
}

void LocalCluster::keep_alive(int64_t progress) {
  const bool advanced = std::exchange(progress_, progress) != progress;
  const auto look = [&](Member& member) {
    if (advanced) member.starts = 0;
    const auto ended = member.process->poll();
    if (!ended) return;
    // A worker may learn that the run is finished a moment before this process does, so a successful exit is
    // judged one round later.
    if (ended->success() && !std::exchange(member.ended_well, true)) return;
    member.ended_well = false;
    if (ended->code == kMismatch) give_up<Mismatch>(member, ended->to_string());
    if (member.starts >= kMaxStarts) {
      give_up<Error>(member,
                     fmt::format("{}, after {} starts without progress", ended->to_string(), member.starts));
    }
    say_(fmt::format("{} (process {}) {}; starting it again", member.name, member.process->pid(),
                     ended->to_string()));
    if (&member == &aggregator_) {
      start_aggregator();
    } else {
      start(member);
    }
  };
  look(aggregator_);
  for (Member& worker : workers_) look(worker);
}

void LocalCluster::stop_workers(int signal) {
  for (Member& worker : workers_) worker.process->send_signal(signal);
  // Two signals sent at the same time may arrive in either order, so ChildProcess::stop() with its SIGTERM is
  // used only for processes that hang.
  for (Member& worker : workers_) {
    if (!worker.process->wait(kStopPatience)) worker.process->stop(Duration::zero());
  }
  workers_.clear();
}

void LocalCluster::stop(int signal) {
  stop_workers(signal);
  aggregator_.process->stop(kStopPatience);
}

}  // namespace allot::app
