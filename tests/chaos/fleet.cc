#include "tests/chaos/fleet.h"

#include <fmt/format.h>

#include <csignal>
#include <stdexcept>
#include <thread>

#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/aggregator/simulated_spec.h"
#include "wire/status_query.h"

namespace allot::chaos {
namespace {

using namespace std::chrono_literals;

constexpr auto kStartDeadline = 30s;
constexpr int kMostRefusedStarts = 5;

wire::RunSpec spec_of(const ChaosOptions& options) {
  wire::RunSpec spec = aggregator::simulated_spec(options.episodes);
  spec.set_seed(static_cast<uint32_t>(options.seed));
  if (spec.policy().name() != options.policy) {
    spec.mutable_policy()->set_name(options.policy);
    spec.mutable_policy()->clear_parameters();  // those of the other learner; absent ones have their defaults
  }
  spec.set_lease_ms(options.lease.count());
  // However often workers are killed, no episode may be given up for it.
  spec.set_max_attempts(1'000);
  return spec;
}

}  // namespace

Fleet::Fleet(const ChaosOptions& options, Network* network) : options_(options), network_(network) {
  std::filesystem::create_directories(options.directory);
  // Made once; the aggregator then continues the run that is there.
  const aggregator::RunDirectory made(run(), spec_of(options));
  if (options.hostile) make_keys();
  workers_.resize(static_cast<size_t>(options.workers));
  for (size_t number = 0; number < workers_.size(); ++number) {
    workers_[number].host = network == nullptr ? 0 : 1 + static_cast<int>(number) % options.hosts;
    workers_[number].by_questions = number % 2 == 0;
    workers_[number].name = fmt::format("w{}", number);
  }
}

Fleet::~Fleet() = default;

std::filesystem::path Fleet::key_file(const std::string& holder) const {
  return options_.directory / (holder + ".key");
}

void Fleet::make_keys() {
  const wire::KeyPair server = wire::make_key_pair();
  wire::write_key_pair(key_file("aggregator"), server);
  std::string allowed;
  for (const std::string holder : {"fleet worker", "mallory worker", "wall viewer"}) {
    const wire::KeyPair pair = wire::make_key_pair();
    const std::string holder_name = holder.substr(0, holder.find(' '));
    wire::write_key_pair(key_file(holder_name), pair);
    allowed += pair.public_key.text() + " " + holder + "\n";
    if (holder_name == "wall") viewer_.emplace(wire::ClientKeys{server.public_key, pair});
  }
  write_file_atomically(options_.directory / "allowed", allowed);
}

void Fleet::start_hostile_worker() {
  hostile_ = spawn(network_ == nullptr ? 0 : 1,
                   {options_.worker.string(), "hostile-worker", endpoint_, std::to_string(options_.seed),
                    key_file("mallory").string(), viewer_->server.text()},
                   "hostile.log");
}

int Fleet::stop_hostile_worker() {
  ::kill(hostile_->pid(), SIGTERM);
  return hostile_->wait(kStartDeadline).value_or(-1);
}

void Fleet::on_host(int host, const std::function<void()>& work) {
  if (network_ == nullptr) return work();
  network_->run_on(host, work);
}

std::unique_ptr<aggregator::Child> Fleet::spawn(int host, std::vector<std::string> command,
                                                const std::string& log) {
  std::unique_ptr<aggregator::Child> child;
  on_host(host, [&] {
    child = std::make_unique<aggregator::Child>(std::move(command), (options_.directory / log).string());
  });
  return child;
}

void Fleet::start_aggregator() {
  const bool first = endpoint_.empty();
  const std::string address = network_ == nullptr ? "127.0.0.1" : Network::address(0);
  std::vector<std::string> command{
      options_.allot.string(), "aggregator", "--run",
      run().string(),          "--bind",     first ? fmt::format("tcp://{}:*", address) : endpoint_,
      "--log-level",           "info"};
  if (options_.hostile) {
    command.insert(command.end(), {"--key", key_file("aggregator").string(), "--allow",
                                   (options_.directory / "allowed").string()});
  } else if (network_ != nullptr) {
    command.emplace_back("--insecure");
  }
  aggregator_ = spawn(0, std::move(command), "aggregator.log");
  if (!first) return;
  const auto deadline = std::chrono::steady_clock::now() + kStartDeadline;
  while (!std::filesystem::exists(aggregator::endpoint_path(run()))) {
    if (aggregator_->wait(10ms) || std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("the aggregator did not come up; see aggregator.log");
  }
  endpoint_ = read_file(aggregator::endpoint_path(run()));
  endpoint_.pop_back();  // newline
}

void Fleet::kill_aggregator() {
  aggregator_->kill();
}

int Fleet::stop_aggregator() {
  ::kill(aggregator_->pid(), SIGTERM);
  const auto status = aggregator_->wait(kStartDeadline);
  if (!status) throw std::runtime_error("the aggregator did not end after SIGTERM");
  return *status;
}

std::optional<wire::Status> Fleet::status() {
  std::optional<wire::Status> status;
  on_host(0, [&] {
    try {
      status = wire::query_status(endpoint_, Duration{300}, viewer_);
    } catch (const NetworkError&) {
      // Not up yet, or busy.
    }
  });
  if (status) {
    refused_starts_ = 0;
  } else if (const auto ended = aggregator_->wait(0ms)) {
    // While no aggregator listens, another program's connection may have been given its port.
    if (++refused_starts_ > kMostRefusedStarts) {
      throw std::runtime_error(fmt::format(
          "the aggregator ended with {} at each of {} starts; see aggregator.log", *ended, refused_starts_));
    }
    start_aggregator();
  }
  return status;
}

void Fleet::start(WorkerProcess* worker) {
  constexpr int kQuestions = 16;
  const auto step = std::chrono::microseconds(options_.episode) / (worker->by_questions ? kQuestions : 1);
  // Impatient, so that a short run sees many connections made anew, but not more than a lost SYN, which is
  // sent again after 1 s; an outage is waited out as by default.
  const Duration patience = options_.outage > Duration::zero() ? 10s : 2s;
  std::vector<std::string> command{options_.worker.string(),
                                   worker->by_questions ? "slow-worker" : "worker",
                                   endpoint_,
                                   worker->name,
                                   std::to_string(step.count()),
                                   std::to_string(options_.capacity),
                                   std::to_string(patience.count())};
  if (options_.hostile) command.insert(command.end(), {key_file("fleet").string(), viewer_->server.text()});
  worker->process = spawn(worker->host, std::move(command), "workers.log");
  worker->state = WorkerProcess::State::kRunning;
  worker->started = std::chrono::steady_clock::now();
}

void Fleet::signal(const WorkerProcess& worker, int number) {
  ::kill(worker.process->pid(), number);
}

}  // namespace allot::chaos
