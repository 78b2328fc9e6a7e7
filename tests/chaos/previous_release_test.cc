// Peers of two releases in one run. The older one knows the messages of
// tests/data/wire/previous_messages.proto: no answers in parts, no epochs in messages, no reasons for giving
// leases back.
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>

#include "aggregator/service.h"
#include "base/error.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/example_spec.h"
#include "tests/aggregator/simulated_runner.h"
#include "tests/aggregator/simulated_spec.h"
#include "tests/chaos/audit.h"
#include "tests/data/wire/previous_messages.pb.h"
#include "tests/names.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/features.h"
#include "wire/status_query.h"
#include "worker/connection.h"

namespace allot::chaos {
namespace {

using aggregator::SimulatedRunner;
using testing::AllOf;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;
using namespace std::chrono_literals;
namespace previous = wire::previous;

constexpr Duration kDeadline = 60s;
constexpr int64_t kEpisodes = 60;

// The questions of an older lease and the answers of the model.
previous::EpisodeResult answer(const previous::Lease& lease, uint32_t run_seed) {
  SimulatedRunner runner(run_seed, 1, 0us);
  runner.start({.id = {lease.episode()},
                .samples = {lease.samples().begin(), lease.samples().end()},
                .questions = {lease.questions().begin(), lease.questions().end()},
                .sampling_seed = lease.sampling_seed()});
  previous::EpisodeResult result;
  result.set_lease(lease.lease());
  result.set_episode(lease.episode());
  result.set_seconds(0.001);
  const worker::EpisodeResult answered = runner.advance().at(0);
  for (const QuestionResult& answer : answered.results) {
    previous::QuestionOutcome& row = *result.add_outcomes();
    row.set_question(answer.question);
    row.set_correct(answer.score == 1);
    row.set_finish(previous::FINISH_REASON_STOP);
    row.set_prompt_tokens(answer.prompt_tokens);
    row.set_output_tokens(answer.output_tokens);
  }
  return result;
}

// A worker of the older release, message by message.
class PreviousWorker {
 public:
  PreviousWorker(const std::string& endpoint, std::string name) : client_(endpoint), name_(std::move(name)) {}

  // Sends `message` and gives the answer to it.
  previous::Envelope ask(previous::Envelope message, const std::vector<int64_t>& leases = {}) {
    message.set_protocol_version(1);
    message.set_number(++number_);
    message.set_sender(name_);
    message.mutable_leases()->Assign(leases.begin(), leases.end());
    client_.send(message.SerializeAsString());
    const auto frame = client_.receive(kDeadline);
    previous::Envelope answer;
    if (!frame || !answer.ParseFromString(*frame)) throw std::runtime_error("no readable answer");
    EXPECT_EQ(answer.protocol_version(), 1u);
    EXPECT_EQ(answer.in_reply_to(), number_);
    return answer;
  }

  previous::Welcome hello(const wire::RunSpec& spec) { return introduce(spec).welcome(); }
  // The answer to its hello, whatever it is.
  previous::Envelope introduce(const wire::RunSpec& spec) {
    previous::Envelope message;
    message.mutable_hello()->ParseFromString(aggregator::example_hello(spec, name_).SerializeAsString());
    message.mutable_hello()->DiscardUnknownFields();
    return ask(std::move(message));
  }
  std::vector<previous::Lease> request(int count) {
    previous::Envelope message;
    message.mutable_lease_request()->set_count(count);
    const previous::Envelope answer = ask(std::move(message));
    finished_ = answer.wait().finished();
    return {answer.grant().leases().begin(), answer.grant().leases().end()};
  }
  previous::Ack::Verdict deliver(const previous::EpisodeResult& result) {
    previous::Envelope message;
    *message.mutable_result() = result;
    const previous::Envelope answer = ask(std::move(message), {result.lease()});
    EXPECT_TRUE(answer.has_ack());
    EXPECT_EQ(answer.ack().lease(), result.lease());
    return answer.ack().verdict();
  }
  bool finished() const { return finished_; }

 private:
  wire::Client client_;
  std::string name_;
  uint64_t number_ = 0;
  bool finished_ = false;
};

// Stands between a worker and an aggregator and lets through what the older release knows: each sees the
// other as a peer of that release.
class PreviousReleaseBetween {
 public:
  explicit PreviousReleaseBetween(const std::string& aggregator)
      : towards_worker_({}), towards_aggregator_(aggregator), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) carry();
        }) {}

  std::string endpoint() const { return towards_worker_.endpoint(); }
  // Frames that held something newer.
  int shortened() const { return shortened_; }

 private:
  void carry() {
    while (const auto message = towards_worker_.receive(1ms)) {
      peer_ = message->peer;
      towards_aggregator_.send(as_previous(message->frame));
    }
    while (const auto frame = towards_aggregator_.receive(0ms))
      towards_worker_.send(peer_, as_previous(*frame));
  }
  std::string as_previous(const std::string& frame) {
    previous::Envelope known;
    EXPECT_TRUE(known.ParseFromString(frame));
    known.DiscardUnknownFields();
    std::string bytes = known.SerializeAsString();
    shortened_ += bytes.size() < frame.size();
    return bytes;
  }

  wire::Server towards_worker_;
  wire::Client towards_aggregator_;
  std::string peer_;
  std::atomic<int> shortened_ = 0;
  std::jthread thread_;
};

class PreviousReleaseTest : public testing::Test {
 protected:
  PreviousReleaseTest() : PreviousReleaseTest(aggregator::simulated_spec(kEpisodes)) {}
  explicit PreviousReleaseTest(wire::RunSpec spec) : spec_(std::move(spec)) {
    aggregator::ServiceOptions options;
    options.run_directory = run_;
    options.build = "test";
    options.exit_when_finished = true;
    options.linger = 1s;  // not all of these workers come back to hear of the end
    service_ = std::make_unique<aggregator::Service>(spec_, options);
    serving_ = std::jthread([this] { service_->run(never_); });
  }

  // Ends the run and reads what it left.
  Audit audit() {
    serving_.join();
    service_.reset();
    return audit_run(run_);
  }

  const wire::RunSpec spec_;
  const std::atomic<bool> never_{false};
  TemporaryDirectory directory_;
  std::filesystem::path run_ = directory_.path() / "run";
  std::unique_ptr<aggregator::Service> service_;
  std::jthread serving_;
};

TEST_F(PreviousReleaseTest, OlderWorkerCompletesARunOfTodaysAggregatorAlsoWhatOthersBegan) {
  // A worker of today leaves with 5 of 16 answers, which an older one cannot do.
  wire::Client today(service_->endpoint());
  const auto say = [&](wire::Envelope message) {
    today.send(wire::encode(std::move(message)));
    return std::get<wire::Envelope>(wire::decode(today.receive(kDeadline).value()));
  };
  wire::Envelope message;
  *message.mutable_hello() = aggregator::example_hello(spec_, "today");
  ASSERT_TRUE(say(message).has_welcome());
  message.mutable_lease_request()->set_count(1);
  const wire::Lease lease = say(message).grant().leases().at(0);
  previous::Lease same;
  ASSERT_TRUE(same.ParseFromString(lease.SerializeAsString()));
  wire::EpisodeResult whole;
  ASSERT_TRUE(whole.ParseFromString(answer(same, spec_.seed()).SerializeAsString()));
  wire::PartialResult& partial = *message.mutable_release()->add_partial();
  partial.set_lease(lease.lease());
  partial.set_episode(lease.episode());
  for (int i = 0; i < 5; ++i) *partial.add_outcomes() = whole.outcomes(i);
  message.mutable_release()->add_leases(lease.lease());
  ASSERT_TRUE(say(message).has_released());

  PreviousWorker older(service_->endpoint(), "older");
  const previous::Welcome welcome = older.hello(spec_);
  EXPECT_EQ(welcome.spec().seed(), spec_.seed());
  EXPECT_EQ(welcome.spec().model().layers(), spec_.model().layers());
  EXPECT_GT(welcome.heartbeat_ms(), 0);
  std::vector<previous::Lease> leases = older.request(2);
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_EQ(leases[0].episode(), lease.episode());
  EXPECT_EQ(leases[0].questions_size(), 11);
  EXPECT_EQ(leases[1].questions_size(), 16);

  previous::Envelope heartbeat;
  heartbeat.mutable_heartbeat();
  EXPECT_THAT(older.ask(heartbeat, {leases[0].lease(), leases[1].lease()}).heartbeat_reply().unknown_leases(),
              IsEmpty());
  previous::Envelope release;
  release.mutable_release()->add_leases(leases[1].lease());
  EXPECT_EQ(older.ask(release).released().leases_size(), 1);

  EXPECT_EQ(older.deliver(answer(leases[0], spec_.seed())), previous::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(older.deliver(answer(leases[0], spec_.seed())), previous::Ack::VERDICT_DUPLICATE);
  while (!older.finished()) {
    for (const previous::Lease& next : older.request(4)) {
      EXPECT_EQ(older.deliver(answer(next, spec_.seed())), previous::Ack::VERDICT_ACCEPTED);
    }
  }
  const Audit audit = this->audit();
  EXPECT_THAT(audit.faults, IsEmpty());
  EXPECT_EQ(audit.counters.released(), 2);
  EXPECT_EQ(audit.counters.duplicate(), 1);
  EXPECT_EQ(audit.answers_kept, 5);
  EXPECT_EQ(audit.answered_in_parts, 1);
}

TEST_F(PreviousReleaseTest, TodaysWorkerCompletesARunOfAnAggregatorThatKnowsOnlyOlderFields) {
  PreviousReleaseBetween between(service_->endpoint());
  worker::ConnectionOptions options{.endpoint = between.endpoint(), .exit_when_finished = true};
  options.preempted = [] { return true; };
  const auto work = [&](const std::string& name, const std::atomic<bool>& stop) {
    return worker::Connection(options).run(
        aggregator::example_hello(spec_, name),
        [](const wire::RunSpec& given) {
          auto runner = std::make_unique<SimulatedRunner>(given.seed(), 4, 1ms);
          runner->go_by_questions();
          return runner;
        },
        stop);
  };
  // The first is preempted in the middle of episodes: what it says of them is not understood, its leases are.
  std::atomic<bool> stop = false;
  {
    const std::jthread preempted([&] { EXPECT_EQ(work("preempted", stop), 0); });
    while (wire::query_status(service_->endpoint(), kDeadline).episodes_done() < 5) {
    }
    stop = true;
  }
  EXPECT_EQ(wire::query_status(service_->endpoint(), kDeadline).episodes_running(), 0);
  EXPECT_EQ(work("heir", never_), 0);
  EXPECT_GT(between.shortened(), 0);
  const Audit audit = this->audit();
  EXPECT_THAT(audit.faults, IsEmpty());
  EXPECT_GE(audit.counters.released(), 1);
  EXPECT_EQ(audit.counters.preempted(), 0);
  EXPECT_EQ(audit.answers_kept, 0);
}

// A run whose workers keep keys and weights with 8 bits: the older release would leave that out.
class PreviousReleaseFormatsTest : public PreviousReleaseTest {
 protected:
  PreviousReleaseFormatsTest() : PreviousReleaseTest(spec_of_eight_bits()) {}

  static wire::RunSpec spec_of_eight_bits() {
    wire::RunSpec spec = aggregator::simulated_spec(kEpisodes);
    spec.mutable_generation()->set_keys("split");
    spec.mutable_generation()->set_weights("fp8");
    return spec;
  }

  // What Connection makes of the answer to this hello.
  int work(const wire::Hello& hello) {
    return worker::Connection({.endpoint = service_->endpoint(), .exit_when_finished = true})
        .run(
            hello,
            [](const wire::RunSpec& given) {
              return std::make_unique<SimulatedRunner>(given.seed(), 4, 0us);
            },
            never_);
  }
};

TEST_F(PreviousReleaseFormatsTest, RefuseAnOlderWorkerAndAreAnsweredByOneThatKnowsThem) {
  PreviousWorker older(service_->endpoint(), "older");
  const previous::Refused refused = older.introduce(spec_).refused();
  EXPECT_EQ(static_cast<int>(refused.reason()), wire::Refused::REASON_RELEASE);
  EXPECT_THAT(refused.message(),
              Names("older", "test", "generation.keys", "split", "generation.weights", "fp8"));
  EXPECT_THAT(older.request(1), IsEmpty());

  wire::Hello knowing = aggregator::example_hello(spec_, "half");
  knowing.add_features("generation.keys");
  EXPECT_THAT([&] { work(knowing); },
              ThrowsMessage<Mismatch>(
                  AllOf(Names("half", "test", "generation.weights", "fp8"), Not(Names("generation.keys")))));
  EXPECT_EQ(wire::query_status(service_->endpoint(), kDeadline).counters().mismatched(), 2);

  knowing.set_worker("today");
  knowing.clear_features();
  for (const std::string_view feature : wire::known_features()) knowing.add_features(std::string(feature));
  EXPECT_EQ(work(knowing), 0);
  const Audit audit = this->audit();
  EXPECT_THAT(audit.faults, IsEmpty());
}

}  // namespace
}  // namespace allot::chaos
