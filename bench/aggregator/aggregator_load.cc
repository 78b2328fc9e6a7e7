#include "bench/aggregator/aggregator_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "aggregator/run_spec.h"
#include "base/error.h"
#include "policy/policy.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/spec.h"

namespace allot::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;
// How often silent workers are looked for.
constexpr auto kHeartbeatRound = 100ms;

std::string name_of(int worker) {
  return fmt::format("worker-{}", worker);
}

// Right or wrong by the numbers of the episode, about as often.
bool is_correct(uint32_t question, int64_t episode) {
  return ((question + static_cast<uint64_t>(episode)) * 0x9E3779B97F4A7C15u >> 63) != 0;
}

double milliseconds(AggregatorLoad::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

wire::RunSpec load_spec(int64_t episodes, const std::string& learner) {
  wire::RunSpec spec;
  spec.set_schema_version(wire::kSpecVersion);
  spec.set_run_id("bench");
  spec.mutable_model()->set_id("simulated");
  spec.mutable_model()->set_layers(28);
  wire::TaskSpec& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.mutable_train()->set_path("simulated");
  task.mutable_train()->set_questions(7473);
  policy::PolicyConfig policy{.name = learner};
  policy.total = 224;
  // Every worker holds one episode, so results are as many versions old as there are workers; all are used.
  policy.max_policy_lag = episodes;
  *spec.mutable_policy() = aggregator::policy_spec(policy);
  spec.set_seed(1);
  spec.set_episodes(episodes);
  spec.set_questions_per_episode(16);
  spec.set_lease_ms(120'000);
  spec.set_max_attempts(5);
  return spec;
}

AggregatorLoad::AggregatorLoad(const std::string& endpoint, const wire::RunSpec& spec, int workers,
                               const std::optional<wire::ClientKeys>& keys)
    : spec_(spec), workers_(static_cast<size_t>(workers)), crowd_(endpoint, workers, keys) {
  for (int worker = 0; worker < workers; ++worker) ready_.push_back(worker);
}

LoadFigures AggregatorLoad::introduce(int window) {
  LoadFigures figures;
  const auto start = last_answer_ = Clock::now();
  while (figures.introduced < std::ssize(workers_)) {
    while (under_way_ < window && !ready_.empty() &&
           workers_[static_cast<size_t>(ready_.front())].doing == Doing::kNew) {
      speak(ready_.front(), Clock::now());
      ready_.pop_front();
    }
    listen(100ms, &figures);
  }
  figures.seconds = milliseconds(Clock::now() - start) / 1000;
  return figures;
}

LoadFigures AggregatorLoad::run_full(int64_t results, int window) {
  LoadFigures figures;
  const auto start = last_answer_ = Clock::now();
  while (figures.results < results) {
    const auto now = Clock::now();
    wake(now);
    send_heartbeats(now);
    while (under_way_ < window) {
      const auto next = take_ready();
      if (!next) break;
      speak(*next, now);
    }
    listen(100ms, &figures);
  }
  figures.seconds = milliseconds(Clock::now() - start) / 1000;
  while (under_way_ > 0) listen(100ms, &figures);
  return figures;
}

LoadFigures AggregatorLoad::run_offered(double rate, std::chrono::seconds duration) {
  LoadFigures figures;
  const auto start = last_answer_ = Clock::now();
  const auto interval = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / rate));
  auto due = start;
  while (due < start + duration) {
    const auto now = Clock::now();
    wake(now);
    send_heartbeats(now);
    while (due <= now && due < start + duration) {
      const auto next = take_ready();
      if (!next) break;
      speak(*next, due);
      due += interval;
    }
    listen(std::clamp(std::chrono::ceil<Duration>(due - Clock::now()), 1ms, 100ms), &figures);
  }
  figures.seconds = milliseconds(Clock::now() - start) / 1000;
  while (under_way_ > 0) listen(100ms, &figures);
  return figures;
}

wire::Envelope AggregatorLoad::hello_of(int index) const {
  wire::Envelope message;
  wire::Hello& hello = *message.mutable_hello();
  hello.set_worker(name_of(index));
  hello.set_build("bench");
  hello.set_device("simulated");
  hello.set_capacity(1);
  *hello.mutable_model() = spec_.model();
  *hello.mutable_train() = spec_.task().train();
  *hello.mutable_heldout() = spec_.task().heldout();
  return message;
}

void AggregatorLoad::speak(int index, Clock::time_point due) {
  const Worker& worker = workers_[static_cast<size_t>(index)];
  wire::Envelope message;
  if (worker.doing == Doing::kNew) {
    message = hello_of(index);
  } else if (worker.doing == Doing::kIdle) {
    message.mutable_lease_request()->set_count(1);
  } else {
    wire::EpisodeResult& result = *message.mutable_result();
    result.set_lease(worker.lease);
    result.set_episode(worker.episode);
    result.set_seconds(1);
    for (const uint32_t question : worker.questions) {
      wire::QuestionOutcome& outcome = *result.add_outcomes();
      outcome.set_question(question);
      outcome.set_correct(is_correct(question, worker.episode));
      outcome.set_finish(wire::FINISH_REASON_STOP);
      outcome.set_prompt_tokens(200);
      outcome.set_output_tokens(150);
    }
  }
  send(index, std::move(message), due);
}

void AggregatorLoad::connect_anew(int index) {
  crowd_.connect_anew(index);
  workers_[static_cast<size_t>(index)].messages = 0;
  send(index, hello_of(index), Clock::now());
}

void AggregatorLoad::send(int index, wire::Envelope message, Clock::time_point due) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  message.set_number(++worker.number);
  message.set_sender(name_of(index));
  if (worker.doing == Doing::kHolding) message.add_leases(worker.lease);
  worker.beside = message.has_heartbeat() || (message.has_hello() && worker.doing != Doing::kNew);
  ++worker.messages;
  worker.awaits_answer = true;
  worker.due = due;
  worker.spoke = Clock::now();
  ++under_way_;
  crowd_.send(index, wire::encode(std::move(message)));
}

void AggregatorLoad::listen(Duration timeout, LoadFigures* figures) {
  const auto message = crowd_.receive(timeout);
  const auto now = Clock::now();
  if (!message) return check_patience(now);
  last_answer_ = now;
  const auto decoded = wire::decode(message->frame);
  if (const auto* failure = std::get_if<wire::DecodeFailure>(&decoded)) throw NetworkError(failure->message);
  take_answer(message->member, std::get<wire::Envelope>(decoded), figures);
}

void AggregatorLoad::take_answer(int index, const wire::Envelope& answer, LoadFigures* figures) {
  Worker& worker = workers_.at(static_cast<size_t>(index));
  if (!worker.awaits_answer || answer.in_reply_to() != worker.number) {
    throw NetworkError(fmt::format("{} got {} in reply to message {}, its last is {}", name_of(index),
                                   wire::body_name(answer), answer.in_reply_to(), worker.number));
  }
  const auto now = Clock::now();
  worker.awaits_answer = false;
  --under_way_;
  if (!worker.beside) figures->reply_ms.push_back(milliseconds(now - worker.due));
  switch (answer.body_case()) {
    case wire::Envelope::kWelcome:
      heartbeat_interval_ = std::chrono::milliseconds(answer.welcome().heartbeat_ms());
      if (worker.doing != Doing::kNew) break;
      worker.doing = Doing::kIdle;
      ++figures->introduced;
      break;
    case wire::Envelope::kGrant: {
      const wire::Lease& lease = answer.grant().leases(0);
      worker.doing = Doing::kHolding;
      worker.lease = lease.lease();
      worker.episode = lease.episode();
      worker.questions.assign(lease.questions().begin(), lease.questions().end());
      ++figures->leases;
      break;
    }
    case wire::Envelope::kWait:
      ++figures->waits;
      waiting_.emplace_back(now + std::chrono::milliseconds(answer.wait().retry_after_ms()), index);
      return;
    case wire::Envelope::kAck:
      if (answer.ack().verdict() != wire::Ack::VERDICT_ACCEPTED) {
        throw NetworkError(fmt::format("a result of {} was not accepted: {} {}", name_of(index),
                                       wire::Ack::Verdict_Name(answer.ack().verdict()),
                                       answer.ack().message()));
      }
      worker.doing = Doing::kIdle;
      ++figures->results;
      break;
    case wire::Envelope::kHeartbeatReply:
      ++figures->heartbeats;
      return;  // it is still in its queue
    default:
      throw NetworkError(fmt::format("{} was answered {}", name_of(index), answer.ShortDebugString()));
  }
  ready_.push_back(index);
}

void AggregatorLoad::send_heartbeats(Clock::time_point now) {
  if (now < next_heartbeats_) return;
  next_heartbeats_ = now + kHeartbeatRound;
  for (size_t index = 0; index < workers_.size(); ++index) {
    const Worker& worker = workers_[index];
    if (worker.awaits_answer || now - worker.spoke < heartbeat_interval_) continue;
    wire::Envelope message;
    message.mutable_heartbeat();
    send(static_cast<int>(index), std::move(message), now);
  }
}

void AggregatorLoad::wake(Clock::time_point now) {
  while (!waiting_.empty() && waiting_.front().first <= now) {
    ready_.push_back(waiting_.front().second);
    waiting_.pop_front();
  }
}

// The first that awaits no answer; as a real worker, each has one message open at a time, and a new
// connection now and then.
std::optional<int> AggregatorLoad::take_ready() {
  for (size_t left = ready_.size(); left > 0; --left) {
    const int index = ready_.front();
    ready_.pop_front();
    const Worker& worker = workers_[static_cast<size_t>(index)];
    if (worker.awaits_answer) {
      ready_.push_back(index);
    } else if (worker.messages >= wire::kMessagesOfAConnection) {
      connect_anew(index);
    } else {
      return index;
    }
  }
  return std::nullopt;
}

void AggregatorLoad::check_patience(Clock::time_point now) const {
  if (under_way_ == 0 || now - last_answer_ < kPatience) return;
  const auto silent = std::ranges::find(workers_, true, &Worker::awaits_answer);
  const char* const doing = silent->beside                  ? "heartbeat or hello"
                            : silent->doing == Doing::kNew  ? "hello"
                            : silent->doing == Doing::kIdle ? "lease request"
                                                            : "result";
  throw NetworkError(
      fmt::format("{} messages have had no answer for {} s, the first of them the {} {} of {}; the log of "
                  "the aggregator may say why",
                  under_way_, kPatience.count(), doing, silent->number,
                  name_of(static_cast<int>(silent - workers_.begin()))));
}

}  // namespace allot::bench
