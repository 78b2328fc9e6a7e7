// allot bench aggregator: the load that one aggregator can carry. Starts the real one as a child process on
// loopback and lets simulated workers loose on it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/cli/open_files.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/run/local_cluster.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/quantile.h"
#include "base/temporary_directory.h"
#include "bench/aggregator/aggregator_load.h"
#include "bench/aggregator/hostile.h"
#include "bench/output.h"
#include "policy/policy.h"
#include "wire/keys.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

// Files that either process has open beside its connections.
constexpr int64_t kOtherFiles = 100;
// With --hostile.
constexpr int kSlowConnections = 1'000;
constexpr int kFloodingConnections = 50;

struct BenchOptions {
  int32_t workers = 10'000;
  int64_t episodes = 100'000;
  int32_t window = 256;
  double rate = 500;
  int32_t rate_seconds = 20;
  std::filesystem::path run;
  // One whose updates cost hardly anything: what is left is the service.
  std::string policy = "pairs";
  bool keys = false;
  bool hostile = false;
  bool json = false;
};

// Of a process, from /proc.
struct Usage {
  double cpu_seconds = 0;
  double resident_mib = 0;
  double peak_mib = 0;
};

Usage usage_of(pid_t pid) {
  Usage usage;
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text(std::istreambuf_iterator<char>(stat), {});
  // Fields 14 and 15, counted from the one after the name in parentheses, which may hold spaces.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 2, text.size())));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  usage.cpu_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) usage.resident_mib = std::stod(line.substr(6)) / 1024;
    if (line.starts_with("VmHWM:")) usage.peak_mib = std::stod(line.substr(6)) / 1024;
  }
  return usage;
}

// Median milliseconds of a small write with a sync in this directory: what each commit pays.
double sync_milliseconds(const std::filesystem::path& directory) {
  const std::string file = (directory / "sync").string();
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) throw StorageError("cannot write " + file);
  const std::string page(4096, 'x');
  std::vector<double> times;
  for (int i = 0; i < 51; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const bool written =
        ::pwrite(descriptor, page.data(), page.size(), i * std::ssize(page)) == std::ssize(page);
    if (!written || ::fdatasync(descriptor) != 0) break;
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  ::close(descriptor);
  std::filesystem::remove(file);
  if (times.size() < 51) throw StorageError("cannot write and sync " + file);
  return quantile(times, 0.5);
}

struct Phase {
  const char* name;
  bench::LoadFigures figures;
  double cpu_seconds = 0;   // of the aggregator in this phase
  double resident_mib = 0;  // of the aggregator after it
};

struct Bench {
  std::vector<Phase> phases;
  Usage usage;
  double sync_ms = 0;
  double history_bytes_per_episode = 0;
  std::optional<bench::HostileFigures> hostile;
  int64_t log_bytes = 0;  // of the aggregator
};

std::filesystem::path key_file(const std::filesystem::path& run) {
  return run / "bench.key";
}
std::filesystem::path allow_file(const std::filesystem::path& run) {
  return run / "bench.allow";
}

struct BenchKeys {
  wire::ClientKeys worker;
  wire::ClientKeys viewer;
};

// Writes the aggregator's key and a list that lets the keys in that are returned.
BenchKeys make_keys(const std::filesystem::path& run) {
  const wire::KeyPair server = wire::make_key_pair();
  BenchKeys keys{.worker = {.server = server.public_key, .own = wire::make_key_pair()},
                 .viewer = {.server = server.public_key, .own = wire::make_key_pair()}};
  wire::write_key_pair(key_file(run), server);
  write_file_atomically(allow_file(run), keys.worker.own.public_key.text() + " bench worker\n" +
                                             keys.viewer.own.public_key.text() + " wall viewer\n");
  return keys;
}

Bench measure(const BenchOptions& options, const std::filesystem::path& run) {
  const int64_t offered = static_cast<int64_t>(options.rate) * options.rate_seconds;
  // More than are answered, so that there is always a lease to grant.
  const wire::RunSpec spec =
      bench::load_spec(2 * (options.episodes + offered + options.workers), options.policy);
  std::filesystem::create_directories(run);
  if (std::filesystem::exists(aggregator::spec_path(run))) {
    throw UsageError("--run " + run.string() + " holds a run already; give an empty directory");
  }
  write_file_atomically(aggregator::spec_path(run), wire::to_json(spec));

  Bench bench;
  bench.sync_ms = sync_milliseconds(run);
  ClusterOptions cluster_options{.run = run, .workers = {}, .log_level = "warn"};
  std::optional<BenchKeys> keys;
  if (options.keys || options.hostile) {
    keys = make_keys(run);
    cluster_options.aggregator_options = {"--key", key_file(run).string(), "--allow",
                                          allow_file(run).string()};
  }
  if (options.hostile) {
    cluster_options.aggregator_options.push_back("--http");
    cluster_options.aggregator_options.push_back("127.0.0.1:*");
  }
  LocalCluster cluster(std::move(cluster_options), [](const std::string&) {});
  const pid_t aggregator = cluster.aggregator_pid();
  bench::AggregatorLoad load(cluster.endpoint(), spec, options.workers,
                             keys ? std::optional(keys->worker) : std::nullopt);
  const auto phase = [&](const char* name, const auto& work) {
    spdlog::info("{}", name);
    const double before = usage_of(aggregator).cpu_seconds;
    bench::LoadFigures figures = work();
    const Usage after = usage_of(aggregator);
    bench.phases.push_back({name, std::move(figures), after.cpu_seconds - before, after.resident_mib});
  };
  std::optional<bench::Hostile> hostile;
  if (options.hostile) {
    hostile.emplace(read_file(aggregator::http_path(run)), cluster.endpoint(), keys->viewer, kSlowConnections,
                    kFloodingConnections);
  }
  phase("introduction", [&] { return load.introduce(options.window); });
  phase("full rate", [&] { return load.run_full(options.episodes, options.window); });
  phase("offered rate",
        [&] { return load.run_offered(options.rate, std::chrono::seconds(options.rate_seconds)); });
  bench.usage = usage_of(aggregator);
  if (hostile) bench.hostile = hostile->stop();
  const auto log = run / "log" / "aggregator.log";
  if (std::filesystem::exists(log)) bench.log_bytes = static_cast<int64_t>(std::filesystem::file_size(log));
  int64_t results = 0;
  for (const Phase& one : bench.phases) results += one.figures.results;
  cluster.stop(SIGINT);
  bench.history_bytes_per_episode =
      static_cast<double>(std::filesystem::file_size(aggregator::history_path(run))) /
      static_cast<double>(std::max<int64_t>(results, 1));
  return bench;
}

void print_json(const Bench& bench, const BenchOptions& options) {
  for (const Phase& phase : bench.phases) {
    const bench::LoadFigures& figures = phase.figures;
    nlohmann::ordered_json json = {
        {"what", "aggregator"},
        {"phase", phase.name},
        {"workers", options.workers},
        {"policy", options.policy},
        {"window", options.window},
        {"rate", options.rate},
        {"keys", options.keys},
        {"seconds", figures.seconds},
        {"introduced", figures.introduced},
        {"leases", figures.leases},
        {"results", figures.results},
        {"waits", figures.waits},
        {"heartbeats", figures.heartbeats},
        {"leases_per_second", static_cast<double>(figures.leases) / figures.seconds},
        {"results_per_second", static_cast<double>(figures.results) / figures.seconds},
        {"reply_ms",
         {{"p50", bench::json_number(quantile(figures.reply_ms, 0.5))},
          {"p99", bench::json_number(quantile(figures.reply_ms, 0.99))},
          {"max", bench::json_number(quantile(figures.reply_ms, 1))}}},
        {"aggregator_cpu_seconds", phase.cpu_seconds},
        {"aggregator_resident_mib", phase.resident_mib},
        {"aggregator_peak_mib", bench.usage.peak_mib},
        {"history_bytes_per_episode", bench.history_bytes_per_episode},
        {"disk_sync_ms", bench.sync_ms},
        {"cores", std::thread::hardware_concurrency()},
        {"version", version()}};
    if (bench.hostile) {
      json["hostile"] = {{"slow_connections", bench.hostile->slow_connections},
                         {"unreadable_messages", bench.hostile->unreadable},
                         {"probes", bench.hostile->probe_ms.size()},
                         {"probe_ms",
                          {{"p50", bench::json_number(quantile(bench.hostile->probe_ms, 0.5))},
                           {"p99", bench::json_number(quantile(bench.hostile->probe_ms, 0.99))},
                           {"max", bench::json_number(quantile(bench.hostile->probe_ms, 1))}}},
                         {"log_bytes", bench.log_bytes}};
    }
    std::cout << bench::json_line(json);
  }
}

void print(const Bench& bench, const BenchOptions& options) {
  if (options.json) return print_json(bench, options);
  std::cout << fmt::format(
      "{} workers on loopback, {} messages under way at full rate, policy {}, aggregator and workers on {} "
      "cores, disk sync {:.2f} ms\n",
      options.workers, options.window, options.policy, std::thread::hardware_concurrency(), bench.sync_ms);
  const bench::Table table({{"", -14},
                            {"seconds", 9, 2},
                            {"leases/s", 10},
                            {"results/s", 11},
                            {"p50 ms", 9, 2},
                            {"p99 ms", 9, 2},
                            {"max ms", 9, 1},
                            {"heartbeats", 12},
                            {"waits", 8},
                            {"CPU s", 8, 2},
                            {"CPU %", 7},
                            {"resident MiB", 14}});
  std::cout << table.head();
  for (const Phase& phase : bench.phases) {
    const bench::LoadFigures& figures = phase.figures;
    std::cout << table.line(
        {phase.name, figures.seconds, static_cast<double>(figures.leases) / figures.seconds,
         static_cast<double>(figures.results) / figures.seconds, quantile(figures.reply_ms, 0.5),
         quantile(figures.reply_ms, 0.99), quantile(figures.reply_ms, 1), figures.heartbeats, figures.waits,
         phase.cpu_seconds, 100 * phase.cpu_seconds / figures.seconds, phase.resident_mib});
  }
  std::cout << fmt::format(
      "aggregator: {:.1f} MiB resident ({:.1f} at most); history: {:.0f} bytes an episode\n",
      bench.usage.resident_mib, bench.usage.peak_mib, bench.history_bytes_per_episode);
  if (!bench.hostile) return;
  const std::vector<double>& probes = bench.hostile->probe_ms;
  std::cout << fmt::format(
      "beside it {} slow HTTP connections and {} unreadable messages of a viewer: /healthz in {:.1f} ms (p50), "
      "{:.1f} (p99), {:.1f} (max of {}); {} bytes of log\n",
      bench.hostile->slow_connections, bench.hostile->unreadable, quantile(probes, 0.5),
      quantile(probes, 0.99), quantile(probes, 1), probes.size(), bench.log_bytes);
}

}  // namespace

int run_bench_aggregator(std::span<const std::string> arguments) {
  std::string what = "aggregator";
  BenchOptions options;
  OptionSet set("bench", "measure one aggregator under simulated workers on this machine",
                "allot bench aggregator --workers 100 --episodes 1000 --rate-seconds 2");
  set.positional("what", &what, "WHAT", "aggregator");
  set.integer("workers", &options.workers, 1, 1'000'000, "N", "simulated workers, each with a connection");
  set.integer("episodes", &options.episodes, 1, int64_t{1} << 40, "N", "results at full rate");
  set.integer("window", &options.window, 1, 1'000'000, "N",
              "messages under way at full rate, over all workers");
  set.real("rate", &options.rate, 0.1, 1e6, "R", "requests and results a second after that");
  set.integer("rate-seconds", &options.rate_seconds, 1, 86'400, "S", "duration of the phase at that rate");
  set.path("run", &options.run,
           "empty directory for the run, on the disk to measure; a temporary one without it");
  set.choice("policy", &options.policy, policy::policy_names(),
             "the learner; the updates of auto take the aggregator longer than its service");
  set.flag("keys", &options.keys, "encrypt all connections (CURVE); the workers share one key");
  set.flag(
      "hostile", &options.hostile,
      "beside the introduced workers 1,000 HTTP connections that send a byte a second, a viewer that floods with "
      "unreadable messages on 50 connections, and /healthz asked ten times a second; with keys");
  set.flag("json", &options.json, "print one JSON object a phase");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  require_open_files(options.workers + kOtherFiles +
                     (options.hostile ? kSlowConnections + kFloodingConnections : 0));
  if (!options.run.empty()) {
    print(measure(options, options.run), options);
    return 0;
  }
  const TemporaryDirectory directory;
  print(measure(options, directory.path()), options);
  return 0;
}

}  // namespace allot::app
