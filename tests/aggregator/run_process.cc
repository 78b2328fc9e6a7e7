// The aggregator and a simulated worker as processes that tests may kill, and a maker of long histories:
//   run_process aggregator RUN_DIRECTORY BIND EPISODES
//     prints its endpoint, serves until the run is finished; 0 episodes: continues the run that is there
//   run_process worker ENDPOINT NAME STEP_MICROSECONDS [CAPACITY [PATIENCE_MS [KEY_FILE SERVER_KEY]]]
//     works on 4 or CAPACITY episodes until the run is finished; SIGTERM is the loss of its machine; connects
//     anew to an aggregator that is silent for PATIENCE_MS; shows the key of a file
//   run_process slow-worker ENDPOINT NAME STEP_MICROSECONDS [CAPACITY [PATIENCE_MS [KEY_FILE SERVER_KEY]]]
//     the same with one question a step
//   run_process hostile-worker ENDPOINT SEED KEY_FILE SERVER_KEY
//     works against the run (hostile_worker.h) until SIGTERM
//   run_process talking-worker ENDPOINT NAME STEP_MICROSECONDS [CAPACITY [PATIENCE_MS]]
//     a slow-worker that prints what it does, one line each: "started" and "finished" of an episode,
//     "answered" of a question that does not finish one
//   run_process grow RUN_DIRECTORY EPISODES
//     writes a history of EPISODES told episodes, without sockets
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/service.h"
#include "base/error.h"
#include "base/log.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/hostile_worker.h"
#include "tests/aggregator/simulated_runner.h"
#include "tests/aggregator/simulated_spec.h"
#include "wire/spec.h"
#include "worker/connection.h"

namespace allot::aggregator {
namespace {

std::atomic<bool> stop{false};

// Continues the run that the directory holds when `episodes` is 0.
int serve(const std::string& directory, const std::string& bind, int64_t episodes) {
  ServiceOptions options;
  options.run_directory = directory;
  options.server.bind = bind;
  options.build = "test";
  options.exit_when_finished = true;
  Service service(episodes > 0 ? simulated_spec(episodes) : wire::read_spec(spec_path(directory)), options);
  std::cout << service.endpoint() << std::endl;
  service.run(stop);
  return 0;
}

// Tells the test how far the worker is, which nobody else sees while no aggregator runs.
class TalkingRunner final : public worker::EpisodeRunner {
 public:
  explicit TalkingRunner(std::unique_ptr<EpisodeRunner> runner) : runner_(std::move(runner)) {}

  int capacity() const override { return runner_->capacity(); }
  void start(Episode episode) override {
    runner_->start(std::move(episode));
    std::cout << "started" << std::endl;
  }
  std::vector<worker::EpisodeResult> advance() override {
    std::vector<worker::EpisodeResult> finished = runner_->advance();
    std::cout << (finished.empty() ? "answered" : "finished") << std::endl;
    return finished;
  }
  worker::EpisodeResult answered_so_far(EpisodeId episode) const override {
    return runner_->answered_so_far(episode);
  }
  void cancel(EpisodeId episode) override { runner_->cancel(episode); }

 private:
  std::unique_ptr<EpisodeRunner> runner_;
};

wire::ClientKeys keys_of(const std::string& key_file, const std::string& server_key) {
  return {.server = wire::read_server_keys(server_key)[0], .own = wire::read_key_pair(key_file)};
}

int work(const std::vector<std::string>& words) {
  worker::ConnectionOptions options{.endpoint = words[1], .exit_when_finished = true};
  options.first_retry = options.resend = Duration{100};
  options.preempted = [] { return true; };
  const int capacity = words.size() > 4 ? std::stoi(words[4]) : 4;
  if (words.size() > 5) options.patience = options.longest_retry = Duration{std::stoll(words[5])};
  if (words.size() > 7) options.keys = keys_of(words[6], words[7]);
  const auto factory = [&](const wire::RunSpec& spec) -> std::unique_ptr<worker::EpisodeRunner> {
    auto runner = std::make_unique<SimulatedRunner>(spec.seed(), capacity,
                                                    std::chrono::microseconds{std::stoll(words[3])});
    if (words[0] != "worker") runner->go_by_questions();
    if (words[0] == "talking-worker") return std::make_unique<TalkingRunner>(std::move(runner));
    return runner;
  };
  return worker::Connection(options).run(example_hello(simulated_spec(1), words[2]), factory, stop);
}

constexpr size_t kRecordsPerCommit = 20'000;

// The schedules of a 28-layer model, the size of those that a long run is for; half of the run is done.
int grow(const std::string& directory, int64_t episodes) {
  wire::RunSpec spec = simulated_spec(2 * episodes);
  spec.mutable_model()->set_layers(28);
  spec.mutable_policy()->set_total(224);
  // Nothing is computed, but the report says what was.
  wire::AttentionSpec& attention = *spec.mutable_attention();
  attention.set_estimator("sys");
  attention.set_prefill("sampled");
  attention.set_tile(256);
  attention.set_score_stage("exact");
  spec.mutable_generation()->set_dtype("bfloat16");
  spec.mutable_task()->set_prompt_style("plain");
  const RunDirectory run(directory, spec);
  SystemClock clock;
  const auto history = open_sqlite_history(history_path(run.path()), "test", clock.now());
  Core core(run.spec(), policy::make_policy(policy_config(run.spec())), *history, clock.now());
  wire::Envelope message;
  const auto send = [&] { core.receive({"peer"}, wire::encode(message), clock.now()); };
  *message.mutable_hello() = example_hello(run.spec(), "w");
  send();
  std::vector<Record> records;
  for (int64_t told = 0; told < episodes;) {
    message.mutable_lease_request()->set_count(64);
    send();
    Outputs outputs = core.take();
    for (const wire::Lease& lease : outputs.replies.back().envelope.grant().leases()) {
      *message.mutable_result() = result_of(lease, static_cast<int>(lease.sampling_seed() % 17));
      send();
      ++told;
    }
    std::ranges::move(outputs.records, std::back_inserter(records));
    std::ranges::move(core.take().records, std::back_inserter(records));
    // Each commit waits for the disk, which other work may keep busy.
    if (records.size() < kRecordsPerCommit && told < episodes) continue;
    history->commit(records, core.counters(), clock.now());
    records.clear();
  }
  return 0;
}

int main_of(const std::vector<std::string>& words) {
  std::signal(SIGTERM, [](int) { stop = true; });
  if (words.size() == 4 && words[0] == "aggregator") return serve(words[1], words[2], std::stoll(words[3]));
  const bool is_worker = words[0] == "worker" || words[0] == "slow-worker" || words[0] == "talking-worker";
  if (words.size() >= 4 && words.size() <= 8 && is_worker) return work(words);
  if (words.size() == 5 && words[0] == "hostile-worker") {
    work_against(words[1], keys_of(words[3], words[4]), std::stoull(words[2]), stop);
    return 0;
  }
  if (words.size() == 3 && words[0] == "grow") return grow(words[1], std::stoll(words[2]));
  std::cerr << "see the head of run_process.cc\n";
  return 2;
}

}  // namespace
}  // namespace allot::aggregator

int main(int argc, char** argv) {
  try {
    allot::set_up_logging("run_process", "warn");
    return allot::aggregator::main_of({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
