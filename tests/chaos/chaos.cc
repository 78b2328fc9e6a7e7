#include "tests/chaos/chaos.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/chaos/fleet.h"

namespace allot::chaos {
namespace {

using namespace std::chrono_literals;
using Instant = std::chrono::steady_clock::time_point;
using State = WorkerProcess::State;

constexpr auto kRound = 10ms;
constexpr auto kStatusEvery = 50ms;
// A worker asked to leave is gone by then, whatever the aggregator and the network do.
constexpr auto kDrainBar = 5s;
// A younger process may not have come to its handler of SIGTERM yet.
constexpr auto kHandlesSignals = 2s;
// A run in which nothing is new for this time, although nothing is done to it, hangs.
constexpr auto kStandstill = 60s;
// Faults end at this part of the learning episodes, so that the end is judged in peace.
constexpr double kCalmAfter = 0.97;
// This share of the faults of workers is a fault of all workers at once.
constexpr double kFreeze = 0.02;
constexpr double kKillDuringStart = 0.25;
constexpr auto kStart = 300ms;

class Storm {
 public:
  Storm(const ChaosOptions& options, ChaosReport* report)
      : options_(options),
        report_(report),
        random_(options.seed),
        network_(options.hosts > 0 ? std::make_unique<Network>(1 + options.hosts, options.seed) : nullptr),
        fleet_(options, network_.get()) {
    std::uniform_int_distribution<int64_t> anywhere(0, calm_after() - 1);
    for (int kill = 0; kill < options.aggregator_kills; ++kill) kills_at_.push_back(anywhere(random_));
    std::ranges::sort(kills_at_, std::greater());
    if (options.outage > Duration::zero()) outage_at_ = options.episodes / 2;
  }

  void run() {
    const Instant begin = Clock::now();
    fleet_.start_aggregator();
    for (WorkerProcess& worker : fleet_.workers()) fleet_.start(&worker);
    if (options_.hostile) fleet_.start_hostile_worker();
    moved_ = next_worker_fault_ = next_weather_ = begin;
    while (!finished()) {
      std::this_thread::sleep_for(kRound);
      now_ = Clock::now();
      watch_aggregator();
      watch_workers();
      if (!calm()) {
        strike_workers();
        change_weather();
      } else {
        clear_up();
      }
      if (now_ - moved_ > kStandstill + options_.outage) throw std::runtime_error(standstill());
    }
    end();
    report_->seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (network_) report_->packets = network_->counts();
  }

 private:
  using Clock = std::chrono::steady_clock;

  int64_t calm_after() const {
    return static_cast<int64_t>(kCalmAfter * static_cast<double>(options_.episodes));
  }
  int64_t done() const { return last_ ? last_->episodes_done() : 0; }
  bool calm() const { return done() >= calm_after() && kills_at_.empty() && !outage_at_; }
  bool finished() const { return last_ && last_->stage() == "finished"; }
  bool happens(double chance) { return std::uniform_real_distribution<>(0, 1)(random_) < chance; }
  Duration between(Duration least, Duration most) {
    return Duration{std::uniform_int_distribution<int64_t>(least.count(), most.count())(random_)};
  }
  template <class... Values>
  void fault(fmt::format_string<Values...> what, Values&&... values) {
    report_->faults.push_back(fmt::format(what, std::forward<Values>(values)...));
  }
  std::string standstill() const {
    return fmt::format("the run stands still at {} of {} episodes (stage {})", done(), options_.episodes,
                       last_ ? last_->stage() : "unknown");
  }

  // ---- The aggregator

  void watch_aggregator() {
    if (down_until_) {
      if (now_ < *down_until_) return;
      down_until_.reset();
      fleet_.start_aggregator();
      if (happens(kKillDuringStart) && !calm()) kill_soon_ = now_ + between(0ms, kStart);
      next_status_ = now_;
    }
    if (kill_soon_ && now_ >= *kill_soon_) {
      kill_soon_.reset();
      ++report_->kills_during_start;
      return kill_aggregator(0ms);
    }
    if (now_ < next_status_) return;
    next_status_ = now_ + kStatusEvery;
    if (std::optional<wire::Status> status = fleet_.status()) note(std::move(*status));
    if (outage_at_ && done() >= *outage_at_) {
      outage_at_.reset();
      return kill_aggregator(options_.outage);
    }
    if (kills_at_.empty() || done() < kills_at_.back()) return;
    kills_at_.pop_back();
    const double how_long = std::uniform_real_distribution<>(0, 1)(random_);
    kill_aggregator(how_long < 0.5   ? Duration{0}
                    : how_long < 0.9 ? between(0ms, options_.lease)
                                     : between(options_.lease, 2 * options_.lease));
  }

  void kill_aggregator(Duration away) {
    // At any instant of its rounds, not right after it answered a question.
    std::this_thread::sleep_for(std::chrono::microseconds(between(0ms, 50ms)));
    fleet_.kill_aggregator();
    ++report_->aggregator_kills;
    down_until_ = Clock::now() + away;
  }

  // What an aggregator said is in its history, so the next one knows of it too.
  void note(wire::Status status) {
    if (last_) {
      const auto never_less = [&](const char* what, int64_t before, int64_t now) {
        if (now < before) fault("{} went back from {} to {} in epoch {}", what, before, now, status.epoch());
      };
      never_less("the epoch", last_->epoch(), status.epoch());
      never_less("the number of episodes done", last_->episodes_done(), status.episodes_done());
      never_less("the policy version", last_->policy_version(), status.policy_version());
      never_less("the counter granted", last_->counters().granted(), status.counters().granted());
      never_less("the counter accepted", last_->counters().accepted(), status.counters().accepted());
      never_less("the counter late", last_->counters().late(), status.counters().late());
      if (answered(status) != answered(*last_)) moved_ = now_;
    }
    last_ = std::move(status);
  }

  // Episodes with a result, of both stages.
  static int64_t answered(const wire::Status& status) {
    return status.counters().accepted() + status.counters().late();
  }

  // ---- Workers

  void watch_workers() {
    for (WorkerProcess& worker : fleet_.workers()) {
      if (worker.state == State::kGone) {
        if (now_ >= worker.until) fleet_.start(&worker);
        continue;
      }
      if (worker.state == State::kPaused) {
        if (now_ < worker.until) continue;
        Fleet::signal(worker, SIGCONT);
        worker.state = State::kRunning;
      }
      const auto status = worker.process->wait(0ms);
      if (worker.state == State::kLeaving) {
        const auto took = std::chrono::duration_cast<Duration>(now_ - worker.since);
        if (!status && took < kDrainBar) continue;
        report_->longest_drain = std::max(report_->longest_drain, took);
        if (!status) fault("worker {} was not gone {} ms after SIGTERM", worker.name, took.count());
        const bool handles = worker.since - worker.started > kHandlesSignals;
        if (status && *status != 0 && (handles || *status != 128 + SIGTERM))
          fault("worker {} left with {} after SIGTERM", worker.name, *status);
        begone(&worker);
      } else if (status && (*status != 0 || done() < options_.episodes)) {
        fault("worker {} ended by itself with {}", worker.name, *status);
        begone(&worker);
      }
    }
  }

  // Until it is started again after a while, as the same worker or another.
  void begone(WorkerProcess* worker) {
    worker->process->kill();
    worker->state = State::kGone;
    worker->until = now_ + between(0ms, options_.lease / 2);
    if (!options_.rename_workers || happens(0.5)) return;
    const std::string first = worker->name.substr(0, worker->name.find('-'));
    worker->name = fmt::format("{}-{}", first, ++worker->generation);
  }

  void strike_workers() {
    if (options_.worker_faults_per_second <= 0 || now_ < next_worker_fault_) return;
    const double pause = std::exponential_distribution<>(options_.worker_faults_per_second)(random_);
    next_worker_fault_ =
        now_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause));
    auto& workers = fleet_.workers();
    if (options_.rename_workers && happens(kFreeze)) return freeze();
    WorkerProcess& victim = workers[std::uniform_int_distribution<size_t>(0, workers.size() - 1)(random_)];
    if (victim.state != State::kRunning && victim.state != State::kPaused) return;
    const double what = std::uniform_real_distribution<>(0, 1)(random_);
    if (!options_.rename_workers || what < 0.45 || victim.state == State::kPaused) {
      ++report_->worker_kills;
      begone(&victim);
    } else if (what < 0.7) {
      ++report_->worker_drains;
      Fleet::signal(victim, SIGTERM);
      victim.state = State::kLeaving;
      victim.since = now_;
    } else {
      pause_worker(&victim, between(options_.lease / 4, 5 * options_.lease / 2));
    }
  }

  void pause_worker(WorkerProcess* worker, Duration away) {
    ++report_->worker_pauses;
    report_->long_pauses += away > options_.lease;
    Fleet::signal(*worker, SIGSTOP);
    worker->state = State::kPaused;
    worker->until = now_ + away;
  }

  // All at once past their leases: nobody is left to take their episodes over, so their results come late.
  void freeze() {
    ++report_->freezes;
    for (WorkerProcess& worker : fleet_.workers()) {
      if (worker.state == State::kRunning) pause_worker(&worker, 3 * options_.lease / 2);
    }
  }

  // ---- The network

  void change_weather() {
    if (!network_ || now_ < next_weather_) return;
    next_weather_ = now_ + between(100ms, options_.lease / 2);
    const int host = std::uniform_int_distribution<int>(0, network_->hosts() - 1)(random_);
    Cable cable{.delay = between(0ms, 30ms), .jitter = between(0ms, 30ms)};
    cable.loss = happens(0.5) ? 0.05 : 0.01;
    cable.duplicate = 0.01;
    // The aggregator's own cable stays whole: with it cut the whole run would only stand still.
    cable.cut = host != 0 && happens(0.3);
    report_->partitions += cable.cut;
    network_->set_cable(host, cable);
  }

  void clear_up() {
    if (!network_ || fair_) return;
    fair_ = true;
    for (int host = 0; host < network_->hosts(); ++host) network_->set_cable(host, {});
  }

  // ---- The end

  void end() {
    if (options_.hostile) {
      if (const int status = fleet_.stop_hostile_worker(); status != 0)
        fault("the hostile worker ended with {}", status);
    }
    for (WorkerProcess& worker : fleet_.workers()) {
      if (worker.state == State::kGone) continue;
      if (worker.state == State::kPaused) Fleet::signal(worker, SIGCONT);
      // It leaves by itself once it has asked; one that sleeps out a pause in connecting is told to.
      auto status = worker.process->wait(std::chrono::milliseconds(2s));
      if (!status) {
        Fleet::signal(worker, SIGTERM);
        status = worker.process->wait(std::chrono::milliseconds(kDrainBar));
      }
      if (status != 0)
        fault("worker {} did not leave the finished run with 0 but {}", worker.name, status.value_or(-1));
    }
    std::optional<wire::Status> last;
    const Instant deadline = Clock::now() + kStandstill;
    while (!last && Clock::now() < deadline) last = fleet_.status();
    if (!last) throw std::runtime_error("the aggregator of the finished run does not answer");
    if (const int status = fleet_.stop_aggregator(); status != 0)
      fault("the aggregator left with {} after SIGTERM", status);
    report_->audit = audit_run(fleet_.run(), options_.hostile);
    const std::vector<std::string> differences = compare(report_->audit, *last);
    report_->faults.insert(report_->faults.end(), report_->audit.faults.begin(), report_->audit.faults.end());
    report_->faults.insert(report_->faults.end(), differences.begin(), differences.end());
    // Where workers are only left alone, each still holds what it was granted, finished or not.
    const bool workers_in_peace = options_.worker_faults_per_second <= 0 && !network_;
    if (const int64_t expired = last->counters().timed_out(); workers_in_peace && expired > 0)
      fault("{} leases of workers that were there all the time ran out", expired);
    if (report_->audit.given_up > 0) fault("{} episodes were given up", report_->audit.given_up);
  }

  const ChaosOptions& options_;
  ChaosReport* report_;
  std::mt19937_64 random_;
  std::unique_ptr<Network> network_;
  Fleet fleet_;
  std::vector<int64_t> kills_at_;  // episodes done at the kills to come, the next one last
  std::optional<int64_t> outage_at_;
  std::optional<Instant> down_until_;  // the aggregator
  std::optional<Instant> kill_soon_;
  std::optional<wire::Status> last_;
  bool fair_ = false;
  Instant now_, moved_, next_status_, next_worker_fault_, next_weather_;
};

}  // namespace

ChaosReport run_chaos(const ChaosOptions& options) {
  ChaosReport report;
  Storm(options, &report).run();
  return report;
}

std::string describe(const ChaosOptions& options, const ChaosReport& report) {
  const Audit& audit = report.audit;
  const wire::Counters& counters = audit.counters;
  const auto given_up_or_lost = audit.episodes - audit.outcomes;
  std::string text = fmt::format("seed {}, policy {}, {} workers, lease {} ms, {:.0f} s\n", options.seed,
                                 options.policy, options.workers, options.lease.count(), report.seconds);
  const auto add = [&](const char* what, const std::string& value) {
    text += fmt::format("{:<28} {}\n", what, value);
  };
  add("aggregator killed", fmt::format("{} ({} within 0.3 s of a start), {} epochs", report.aggregator_kills,
                                       report.kills_during_start, audit.epochs));
  add("workers killed", fmt::format("{}", report.worker_kills));
  add("workers drained",
      fmt::format("{}, the slowest in {} ms", report.worker_drains, report.longest_drain.count()));
  add("workers paused", fmt::format("{} ({} for longer than a lease; {} times all at once)",
                                    report.worker_pauses, report.long_pauses, report.freezes));
  if (options.hosts > 0) {
    const PacketCounts& packets = report.packets;
    add("partitions", fmt::format("{}", report.partitions));
    add("packets",
        fmt::format("{} delivered, {} out of order, {} lost, {} twice, {} cut off", packets.delivered,
                    packets.overtaken, packets.lost, packets.duplicated, packets.cut));
  }
  add("episodes", fmt::format("{} asked, {} with an outcome, {} lost or given up", audit.episodes,
                              audit.outcomes, given_up_or_lost));
  add("leases", fmt::format("{}: {} more than episodes", audit.leases, audit.leases - audit.episodes));
  add("results", fmt::format("{} accepted, {} late, {} stale, {} duplicate, {} rejected", counters.accepted(),
                             counters.late(), counters.stale(), counters.duplicate(), counters.rejected()));
  add("leases that ended otherwise",
      fmt::format("{} timed out, {} crashed, {} preempted", counters.timed_out(), counters.crashed(),
                  counters.preempted()));
  if (options.hostile)
    add("of the hostile key",
        fmt::format("{} failures, {} rejected, {} foreign, {} not allowed, {} unreadable", counters.failed(),
                    counters.rejected(), counters.foreign(), counters.not_allowed(), counters.malformed()));
  add("answers kept", fmt::format("{}, part of {} outcomes", audit.answers_kept, audit.answered_in_parts));
  add("policy", fmt::format("version {}, {}", audit.policy_version,
                            audit.faults.empty() ? "equal to its replay" : "in doubt"));
  for (const std::string& fault : report.faults) text += fmt::format("FAULT: {}\n", fault);
  return text;
}

}  // namespace allot::chaos
