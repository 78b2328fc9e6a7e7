#include "aggregator/service.h"

#include <gmock/gmock.h>

#include <thread>

#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "bench/aggregator/crowd.h"
#include "tests/aggregator/example_spec.h"
#include "tests/aggregator/simulated_runner.h"
#include "tests/names.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/status_query.h"
#include "worker/connection.h"

namespace allot::aggregator {
namespace {

using testing::Each;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;
using namespace std::chrono_literals;

constexpr Duration kDeadline = 60s;

class ServiceTest : public testing::Test {
 protected:
  ServiceOptions options() const {
    ServiceOptions options;
    options.run_directory = run_;
    options.build = "test";
    options.exit_when_finished = true;
    return options;
  }

  int work(const std::string& endpoint, const std::string& name, const wire::RunSpec& spec,
           const std::atomic<bool>& stop = never_) const {
    worker::Connection connection({.endpoint = endpoint, .exit_when_finished = true});
    return connection.run(
        example_hello(spec, name),
        [](const wire::RunSpec& given) { return std::make_unique<SimulatedRunner>(given.seed(), 4, 0us); },
        stop);
  }

  static inline const std::atomic<bool> never_{false};
  TemporaryDirectory directory_;
  std::filesystem::path run_ = directory_.path() / "run";
};

TEST_F(ServiceTest, SenderOverItsRateIsToldWhenToGoOnAndOthersAreServed) {
  ServiceOptions limited = options();
  limited.rate = {.per_second = 0.1, .burst = 3};
  Service service(example_spec(), limited);
  std::atomic<bool> stop = false;
  std::jthread serving([&] { service.run(stop); });
  wire::Client eager(service.endpoint());
  wire::Envelope question;
  question.mutable_status_request();
  for (int i = 0; i < 8; ++i) eager.send(wire::encode(question));
  int answered = 0, told_to_wait = 0;
  for (int i = 0; i < 4; ++i) {
    const auto frame = eager.receive(kDeadline);
    ASSERT_TRUE(frame.has_value()) << "nobody said that it is above its rate";
    const auto answer = std::get<wire::Envelope>(wire::decode(*frame));
    answered += answer.has_status();
    told_to_wait += answer.wait().retry_after_ms() > 0;
  }
  EXPECT_EQ(answered, 3);
  EXPECT_EQ(told_to_wait, 1);
  EXPECT_EQ(eager.receive(100ms), std::nullopt) << "it is told once";
  EXPECT_EQ(wire::query_status(service.endpoint(), kDeadline).run_id(), "example");
  stop = true;
}

// The role beside a key on the allow-list is what its holder may do.
TEST_F(ServiceTest, RoleOfAKeyDecidesWhatItsHolderMayDo) {
  const wire::KeyPair own = wire::make_key_pair();
  const wire::KeyPair viewer = wire::make_key_pair(), worker = wire::make_key_pair(),
                      chief = wire::make_key_pair();
  const auto list = directory_.path() / "keys.txt";
  write_file_atomically(list, viewer.public_key.text() + " wall viewer\n" + worker.public_key.text() +
                                  " node\n" + chief.public_key.text() + " ann operator\n");
  ServiceOptions with_keys = options();
  with_keys.server.keys = wire::ServerKeys{own, list};
  Service service(example_spec(), with_keys);
  std::atomic<bool> stop{false};
  std::jthread serving([&] { service.run(stop); });
  const auto answer_to = [&](const wire::KeyPair& key, wire::Envelope message) {
    wire::Client client(service.endpoint(), wire::ClientKeys{own.public_key, key});
    client.send(wire::encode(std::move(message)));
    return std::get<wire::Envelope>(wire::decode(client.receive(kDeadline).value()));
  };
  wire::Envelope hello, pause;
  *hello.mutable_hello() = example_hello(example_spec(), "w");
  pause.mutable_control()->set_action(wire::Control::ACTION_PAUSE);
  pause.mutable_control()->set_by("me");
  EXPECT_EQ(answer_to(viewer, hello).refused().reason(), wire::Refused::REASON_NOT_ALLOWED);
  EXPECT_EQ(answer_to(viewer, pause).refused().reason(), wire::Refused::REASON_NOT_ALLOWED);
  EXPECT_TRUE(answer_to(worker, hello).has_welcome());
  EXPECT_THAT(answer_to(worker, pause).control_reply().message(), Names("operator's key"));
  EXPECT_FALSE(
      wire::query_status(service.endpoint(), kDeadline, wire::ClientKeys{own.public_key, viewer}).paused());
  EXPECT_TRUE(answer_to(chief, pause).control_reply().done());
  stop = true;
}

// However many connections the holder of a viewer's key opens, it is heard no more often than over one.
TEST_F(ServiceTest, AllConnectionsOfAViewersKeyShareOneRate) {
  const wire::KeyPair own = wire::make_key_pair(), viewer = wire::make_key_pair(),
                      worker = wire::make_key_pair();
  const auto list = directory_.path() / "keys.txt";
  write_file_atomically(list,
                        viewer.public_key.text() + " wall viewer\n" + worker.public_key.text() + " node\n");
  ServiceOptions limited = options();
  limited.rate = {.per_second = 0.1, .burst = 3};
  limited.server.keys = wire::ServerKeys{own, list};
  Service service(example_spec(), limited);
  std::atomic<bool> stop = false;
  std::jthread serving([&] { service.run(stop); });
  const auto served = [&](const wire::KeyPair& key) {
    wire::Client client(service.endpoint(), wire::ClientKeys{own.public_key, key});
    wire::Envelope question;
    question.mutable_status_request();
    client.send(wire::encode(question));
    const auto frame = client.receive(500ms);
    return frame && std::get<wire::Envelope>(wire::decode(*frame)).has_status();
  };
  int viewer_served = 0, worker_served = 0;
  for (int connection = 0; connection < 5; ++connection) {
    viewer_served += served(viewer);
    worker_served += served(worker);
  }
  EXPECT_EQ(viewer_served, 3);
  EXPECT_EQ(worker_served, 5);
  stop = true;
}

// A worker that knows both keys of the aggregator works on while it changes them, in the same process.
TEST_F(ServiceTest, TheAggregatorsKeyIsChangedWhileAWorkerWorks) {
  const wire::KeyPair own = wire::make_key_pair(), next = wire::make_key_pair(),
                      worker = wire::make_key_pair();
  const auto list = directory_.path() / "keys.txt", key_file = directory_.path() / "server.key";
  write_file_atomically(list, worker.public_key.text() + " node\n");
  wire::write_key_pair(key_file, own);
  wire::RunSpec spec = example_spec();
  spec.set_episodes(100'000);
  ServiceOptions with_keys = options();
  with_keys.server.keys = wire::ServerKeys{own, list, key_file};
  Service service(spec, with_keys);
  std::atomic<bool> stop{false}, work_done{false};
  std::jthread serving([&] { service.run(stop); });
  std::jthread working([&] {
    worker::Connection connection({.endpoint = service.endpoint(),
                                   .keys = wire::ClientKeys{own.public_key, worker, next.public_key},
                                   .patience = 500ms});
    connection.run(
        example_hello(spec, "w"),
        [](const wire::RunSpec& given) { return std::make_unique<SimulatedRunner>(given.seed(), 4, 100us); },
        work_done);
  });
  const auto done_by = [&](const wire::KeyPair& server) {
    return wire::query_status(service.endpoint(), kDeadline, wire::ClientKeys{server.public_key, worker})
        .episodes_done();
  };
  const auto eventually = [](const auto& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (!holds() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(10ms);
    return holds();
  };
  EXPECT_TRUE(eventually([&] { return done_by(own) > 0; }));
  std::filesystem::remove(key_file);
  wire::write_key_pair(key_file, next);
  EXPECT_TRUE(eventually([&] { return read_file(server_key_path(run_)) == next.public_key.text() + "\n"; }));
  const int64_t before = done_by(next);
  EXPECT_TRUE(eventually([&] { return done_by(next) >= before + 100; })) << "the worker tries no other key";
  EXPECT_EQ(wire::query_status(service.endpoint(), kDeadline,
                               wire::ClientKeys{own.public_key, worker, next.public_key})
                .counters()
                .timed_out(),
            0)
      << "a Grant that was under way is lost, and its leases end at the next Hello; the others stay";
  work_done = true;
  working.join();
  stop = true;
}

// A worker that hears nothing asks again and again; nobody works on what the copies would be granted.
TEST_F(ServiceTest, RequestsRepeatedWhileTheLoopStoodStillAreGrantedNothing) {
  ServiceOptions slow = options();
  slow.standstill = 100ms;
  std::optional<wire::Client> asking;
  constexpr int kCopies = 6;
  slow.on_policy_update = [&](const VersionRow& row, const wire::Status&) {
    if (row.version != 1) return;
    wire::Envelope request;
    request.mutable_lease_request()->set_count(1);
    for (int copy = 0; copy < kCopies; ++copy) asking->send(wire::encode(request));
    std::this_thread::sleep_for(slow.standstill + 700ms);  // a disk that does not answer
  };
  wire::RunSpec spec = example_spec();
  spec.set_episodes(1'000);
  Service service(spec, slow);
  std::atomic<bool> stop{false};
  asking.emplace(service.endpoint());
  wire::Envelope hello;
  *hello.mutable_hello() = example_hello(spec, "asking");
  asking->send(wire::encode(hello));
  std::jthread serving([&] { service.run(stop); });
  ASSERT_TRUE(asking->receive(kDeadline).has_value());
  std::atomic<bool> work_done{false};
  std::jthread working([&] { work(service.endpoint(), "w", spec, work_done); });
  for (int copy = 0; copy < kCopies; ++copy) {
    const auto answer = std::get<wire::Envelope>(wire::decode(asking->receive(kDeadline).value()));
    EXPECT_GT(answer.wait().retry_after_ms(), 0) << "copy " << copy << ": " << answer.ShortDebugString();
  }
  // On a busy machine the loop may stand still again.
  wire::Envelope request, answer;
  request.mutable_lease_request()->set_count(1);
  for (int attempt = 0; attempt < 1'000 && !answer.has_grant(); ++attempt) {
    asking->send(wire::encode(request));
    answer = std::get<wire::Envelope>(wire::decode(asking->receive(kDeadline).value()));
  }
  EXPECT_TRUE(answer.has_grant());
  work_done = true;
  working.join();
  stop = true;
}

TEST_F(ServiceTest, TwoWorkersLearnAndVerifyAScheduleOverRealSockets) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(300);
  spec.set_questions_per_episode(16);
  spec.mutable_task()->set_heldout_questions(20);
  std::vector<int64_t> versions;
  ServiceOptions with_hook = options();
  with_hook.on_policy_update = [&](const VersionRow& row, const wire::Status& status) {
    versions.push_back(row.version);
    EXPECT_GE(status.policy_version(), row.version) << "several updates may share one commit";
    EXPECT_THAT(row.described.per_layer, SizeIs(8));
  };
  {
    Service service(spec, with_hook);
    EXPECT_EQ(read_file(run_ / "endpoint"), service.endpoint() + "\n");
    std::jthread first([&] { EXPECT_EQ(work(service.endpoint(), "first", spec), 0); });
    std::jthread second([&] { EXPECT_EQ(work(service.endpoint(), "second", spec), 0); });
    service.run(never_);
  }
  EXPECT_FALSE(std::filesystem::exists(run_ / "endpoint"));

  const RunData run = read_run(run_);
  EXPECT_EQ(run.stage, "finished");
  EXPECT_EQ(std::ssize(run.learned), 300);
  ASSERT_EQ(run.versions.size(), static_cast<size_t>(run.policy_version) + 1);
  ASSERT_THAT(versions, SizeIs(run.versions.size()));
  for (size_t i = 0; i < versions.size(); ++i) EXPECT_EQ(versions[i], static_cast<int64_t>(i));
  ASSERT_THAT(run.scores, SizeIs(3));
  for (const ScoreRow& score : run.scores) EXPECT_THAT(score.questions, SizeIs(20));
  EXPECT_THAT(run.scores[0].samples, Each(8));
  EXPECT_EQ(run.scores[1].samples, run.recommended);
  const auto right = [&](size_t i) { return std::ranges::count(run.scores[i].scores, 1.0); };
  EXPECT_GT(right(1), right(0) + 10) << "learned against uniform, of 20";
  EXPECT_EQ(run.counters.accepted() + run.counters.late(), 300 + 6);
}

TEST_F(ServiceTest, AStatusQueryIsAnsweredAndTheRunCanBeReadWhileItRuns) {
  Service service(example_spec(), options());
  std::atomic<bool> stop{false};
  std::jthread serving([&] { service.run(stop); });
  const wire::Status status = wire::query_status(service.endpoint(), kDeadline);
  EXPECT_EQ(status.run_id(), "example");
  EXPECT_EQ(status.stage(), "learn");
  EXPECT_EQ(status.episodes_wanted(), 10);
  const RunData run = read_run(run_);
  EXPECT_EQ(run.stage, "learn");
  EXPECT_THAT(run.learned, IsEmpty());
  EXPECT_THAT(run.recommended, SizeIs(8));
  stop = true;
}

TEST_F(ServiceTest, StoppedAndStartedAgainTheRunGoesOnWhereItWas) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(200);
  std::string endpoint;
  int64_t before = 0;
  std::jthread worker;
  {
    Service service(spec, options());
    endpoint = service.endpoint();
    worker = std::jthread([&] { EXPECT_EQ(work(endpoint, "w", spec), 0); });
    std::atomic<bool> stop{false};
    std::jthread serving([&] { service.run(stop); });
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while ((before = wire::query_status(endpoint, kDeadline).episodes_done()) < 50) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    stop = true;
  }
  ServiceOptions again = options();
  again.server.bind = endpoint;
  spec.set_run_id("another name for the same run");
  Service service(spec, again);
  EXPECT_EQ(service.spec().run_id(), "example") << "the first start named it";
  EXPECT_GE(service.status().episodes_done(), before);
  service.run(never_);
  worker.join();
  EXPECT_EQ(read_run(run_).stage, "finished");
}

TEST_F(ServiceTest, ASecondAggregatorOnTheSameDirectoryIsRefused) {
  Service service(example_spec(), options());
  EXPECT_THAT([&] { Service second(example_spec(), options()); },
              ThrowsMessage<StorageError>(Names("aggregator", run_)));
  EXPECT_EQ(read_file(run_ / "endpoint"), service.endpoint() + "\n") << "the first one's file is untouched";
}

TEST_F(ServiceTest, EachMessageOfABurstThatFillsManyRoundsIsAnswered) {
  constexpr int kMembers = 100, kMessages = 100;
  Service service(example_spec(), options());
  bench::Crowd crowd(service.endpoint(), kMembers);
  for (int message = 0; message < kMessages; ++message) {
    for (int member = 0; member < kMembers; ++member) {
      wire::Envelope heartbeat;
      heartbeat.mutable_heartbeat();
      crowd.send(member, wire::encode(heartbeat));
    }
  }
  std::atomic<bool> stop{false};
  std::jthread serving([&] { service.run(stop); });
  int answers = 0;
  while (answers < kMembers * kMessages && crowd.receive(5s)) ++answers;
  EXPECT_EQ(answers, kMembers * kMessages);
  stop = true;
}

TEST_F(ServiceTest, ARunOfAnotherSpecIsRefusedNamingEveryFieldThatDiffers) {
  { Service service(example_spec(), options()); }
  const std::string stored = read_file(run_ / "spec.json");
  wire::RunSpec other = example_spec();
  other.set_seed(8);
  other.mutable_policy()->set_total(128);
  EXPECT_THAT([&] { Service second(other, options()); },
              ThrowsMessage<Mismatch>(Names("policy.total", 64, 128, "seed", 7, 8)));
  EXPECT_EQ(read_file(run_ / "spec.json"), stored);
}

TEST_F(ServiceTest, WhatCannotBeStartedLeavesNothingBehind) {
  wire::RunSpec invalid = example_spec();
  invalid.set_episodes(0);
  EXPECT_THROW(Service(invalid, options()), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(run_));

  const wire::Server taken({});
  ServiceOptions in_use = options();
  in_use.server.bind = taken.endpoint();
  EXPECT_THAT([&] { Service service(example_spec(), in_use); },
              ThrowsMessage<NetworkError>(Names(taken.endpoint(), "in use")));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(ServiceTest, DirectoriesThatAreNoRunAreNamed) {
  EXPECT_THAT([&] { (void)read_run(run_); }, ThrowsMessage<NotFound>(Names("spec.json")));
  { Service service(example_spec(), options()); }
  std::filesystem::remove(run_ / "spec.json");
  EXPECT_THROW((void)read_run(run_), NotFound);
  EXPECT_THROW(Service(example_spec(), options()), CorruptFile);
  write_file_atomically(run_ / "spec.json", "{\"episodes\": ");
  EXPECT_THROW((void)read_run(run_), CorruptFile);
  EXPECT_THROW(Service(example_spec(), options()), CorruptFile);
}

TEST_F(ServiceTest, AFinishedRunCanBeReadFromADirectoryThatCannotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root can write everywhere";
  { Service service(example_spec(), options()); }
  std::filesystem::permissions(run_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_NO_THROW(EXPECT_EQ(read_run(run_).stage, "learn"));
  std::filesystem::permissions(run_, std::filesystem::perms::owner_all);
}

// Kept, committed, acked, in this order: else a kill in between would lose an answer that somebody counts on.
TEST_F(ServiceTest, AnAnswerThatCannotBeKeptIsNeitherAckedNorInTheHistory) {
  const wire::RunSpec spec = evaluation_spec();
  ServiceOptions full = options();
  full.work = {.schedules = {{.label = "dense", .samples = {}, .questions = 2, .scores = {{}, {}}}}};
  int64_t offered = 0;
  full.on_answers = [&](std::span<const GivenAnswer> given) {
    offered += std::ssize(given);
    throw StorageError("the disk is full");
  };
  Service service(spec, full);
  wire::Client client(service.endpoint());
  const auto ask = [&](wire::Envelope message) {
    message.set_number(1);
    client.send(wire::encode(std::move(message)));
  };
  std::string died;
  std::jthread serving([&] {
    try {
      service.run(never_);
    } catch (const StorageError& error) {
      died = error.what();
    }
  });
  const auto answer = [&] {
    return std::get<wire::Envelope>(wire::decode(client.receive(kDeadline).value()));
  };
  wire::Envelope hello, request, result;
  *hello.mutable_hello() = example_hello(spec, "w");
  hello.mutable_hello()->set_device("cpu");
  hello.mutable_hello()->set_replies(true);
  ask(hello);
  ASSERT_TRUE(answer().has_welcome());
  request.mutable_lease_request()->set_count(1);
  ask(request);
  const wire::Lease lease = answer().grant().leases(0);
  result.mutable_result()->set_lease(lease.lease());
  result.mutable_result()->set_episode(lease.episode());
  for (const uint32_t question : lease.questions()) {
    wire::QuestionOutcome& outcome = *result.mutable_result()->add_outcomes();
    outcome.set_question(question);
    outcome.set_finish(wire::FINISH_REASON_EOS);
    outcome.set_reply("so");
  }
  ask(result);
  serving.join();
  EXPECT_EQ(died, "the disk is full");
  EXPECT_EQ(offered, 2);
  EXPECT_EQ(client.receive(200ms), std::nullopt);
  int64_t told = 0;
  read_sqlite_history(history_path(run_))->replay([&](const Record& record) {
    told += std::holds_alternative<EpisodeTold>(record);
  });
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace allot::aggregator
