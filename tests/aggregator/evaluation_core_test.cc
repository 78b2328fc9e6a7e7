// A run that evaluates: leases of schedules that its caller fixes, whose answers he keeps before the history
// does. A map stands for his file; kills come between any two steps.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "base/error.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Refused;
// Schedule, repeat, question.
using Key = std::tuple<std::string, uint32_t, uint32_t>;

std::string reply_to(const std::string& schedule, uint32_t repeat, uint32_t question) {
  return fmt::format("{} {} {} \xC3", schedule, repeat, question);  // ends within a character
}

class EvaluationCore : public testing::TestWithParam<Storage> {
 protected:
  void keep(std::span<const GivenAnswer> given) {
    for (const GivenAnswer& one : given) {
      const Key key{one.schedule, one.repeat, one.result.question};
      EXPECT_TRUE(kept_.emplace(key, one).second) << "answered twice: " << one.text.reply;
    }
  }
  // A second task, where a schedule is of it, has other numbers of repeats and questions.
  uint32_t task_of(const std::string& label) const {
    const auto found = tasks_.find(label);
    return found == tasks_.end() ? 0 : found->second;
  }
  uint32_t repeats_of(const std::string& label) const { return task_of(label) == 0 ? repeats_ : 1; }
  uint32_t questions_of(const std::string& label) const { return task_of(label) == 0 ? questions_ : 5; }
  EvaluationWork work() const {
    EvaluationWork work;
    for (const auto& [label, samples] : schedules_) {
      EvaluatedSchedule& one = work.schedules.emplace_back();
      one.label = label;
      one.samples = samples;
      one.task = task_of(label);
      one.repeats = repeats_of(label);
      one.questions = questions_of(label);
      for (uint32_t repeat = 0; repeat < one.repeats; ++repeat) {
        for (uint32_t question = 0; question < one.questions; ++question) {
          const auto found = kept_.find({label, repeat, question});
          one.scores.push_back(found == kept_.end() ? std::nullopt
                                                    : std::optional(found->second.result.score));
        }
      }
    }
    return work;
  }
  CoreDriver& driver() {
    wire::RunSpec spec = evaluation_spec();
    spec.set_max_attempts(max_attempts_);
    if (!tasks_.empty()) {
      wire::EvaluationTask& more = *spec.mutable_evaluation()->add_more();
      *more.mutable_task() = spec.task();
      more.mutable_task()->mutable_train()->set_sha256("of the second");
      more.mutable_task()->set_name("second");
      *more.mutable_generation() = spec.generation();
      more.set_questions_per_episode(2);
    }
    if (!driver_)
      driver_.emplace(
          GetParam(), spec, [this] { return work(); },
          [this](std::span<const GivenAnswer> given) { keep(given); });
    return *driver_;
  }
  wire::Hello introduction(const std::string& name) {
    wire::Hello hello = example_hello(driver().spec(), name);
    hello.set_device("cpu, 2 cores");
    hello.set_replies(true);
    return hello;
  }
  wire::Envelope hello(const wire::Hello& hello, std::vector<int64_t> leases = {}) {
    wire::Envelope message;
    *message.mutable_hello() = hello;
    return driver().send(hello.worker(), std::move(message), std::move(leases));
  }
  void arrive(const std::string& name) { ASSERT_TRUE(hello(introduction(name)).has_welcome()); }

  // The label of a lease, which has only the samples.
  std::string label_of(const wire::Lease& lease) const {
    for (const auto& [label, samples] : schedules_)
      if (std::ranges::equal(samples, lease.samples()) && task_of(label) == lease.task()) return label;
    ADD_FAILURE() << "no such schedule: " << lease.ShortDebugString();
    return "";
  }
  template <class Message>
  void add_reply(const wire::Lease& lease, uint32_t question, Message* message) const {
    wire::QuestionOutcome& outcome = *message->add_outcomes();
    outcome.set_question(question);
    outcome.set_correct(question % 2 == 0);
    outcome.set_finish(wire::FINISH_REASON_STOP);
    outcome.set_prompt_tokens(10);
    outcome.set_output_tokens(5);
    outcome.set_no_answer(question == 1);
    outcome.set_reply(reply_to(label_of(lease), lease.sampling_seed(), question));
    if (question != 1) outcome.set_answer("42");
  }
  wire::EpisodeResult result(const wire::Lease& lease) const {
    wire::EpisodeResult result;
    result.set_lease(lease.lease());
    result.set_episode(lease.episode());
    result.set_seconds(0.5);
    for (const uint32_t question : lease.questions()) add_reply(lease, question, &result);
    return result;
  }
  wire::Ack answer(const std::string& name, const wire::Lease& lease) {
    return driver().answer(name, result(lease));
  }
  void finish(const std::string& name) {
    while (true) {
      const auto leases = driver().leases(name, 2);
      if (leases.empty()) return;
      for (const wire::Lease& lease : leases)
        EXPECT_EQ(answer(name, lease).verdict(), wire::Ack::VERDICT_ACCEPTED);
    }
  }
  size_t wanted() const {
    size_t all = 0;
    for (const auto& [label, samples] : schedules_) all += size_t{repeats_of(label)} * questions_of(label);
    return all;
  }
  // Both schedules of a second task, with the samples of those of the first.
  void add_second_task() {
    for (const char* name : {"even", "dense"}) {
      schedules_[std::string("second: ") + name] = schedules_.at(name);
      tasks_[std::string("second: ") + name] = 1;
    }
  }

  std::map<std::string, std::vector<int32_t>> schedules_ = {{"even", std::vector<int32_t>(8, 8)},
                                                            {"dense", {}}};
  std::map<std::string, uint32_t> tasks_ = {};  // of the schedules that are of the second
  uint32_t repeats_ = 2, questions_ = 6;
  int32_t max_attempts_ = 3;
  std::map<Key, GivenAnswer> kept_;
  std::optional<CoreDriver> driver_;
};
INSTANTIATE_TEST_SUITE_P(Storages, EvaluationCore, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(EvaluationCore, LeasesSaySchedulesAndRepeatsAndAskForReplies) {
  arrive("w");
  EXPECT_EQ(driver().status().stage(), "evaluate");
  EXPECT_EQ(driver().status().episodes_wanted(), 8);
  const auto leases = driver().leases("w", 64);
  ASSERT_THAT(leases, SizeIs(8));
  std::set<Key> asked;
  for (const wire::Lease& lease : leases) {
    EXPECT_TRUE(lease.replies());
    EXPECT_EQ(lease.kind(), wire::LEASE_KIND_ANSWERS);
    EXPECT_EQ(lease.split(), wire::SPLIT_TRAIN);
    for (const uint32_t question : lease.questions())
      EXPECT_TRUE(asked.insert({label_of(lease), lease.sampling_seed(), question}).second);
  }
  EXPECT_EQ(asked.size(), wanted());
  EXPECT_TRUE(driver().request("w", 1).has_wait());
}

TEST_P(EvaluationCore, KeepsRepliesAsTheyAreAndFinishes) {
  arrive("w");
  finish("w");
  ASSERT_EQ(kept_.size(), wanted());
  for (const auto& [key, given] : kept_) {
    const auto& [schedule, repeat, question] = key;
    EXPECT_EQ(given.text.reply, reply_to(schedule, repeat, question));
    EXPECT_EQ(given.text.answer, question == 1 ? std::nullopt : std::optional<std::string>("42"));
    EXPECT_EQ(given.result.no_answer, question == 1);
    EXPECT_EQ(given.result.score, question % 2 == 0);
    EXPECT_EQ(given.result.finish, Finish::kStop);
    EXPECT_EQ(given.result.prompt_tokens, 10);
    EXPECT_EQ(given.result.output_tokens, 5);
  }
  const wire::Status status = driver().status();
  EXPECT_EQ(status.stage(), "finished");
  ASSERT_EQ(status.scores_size(), 2);
  EXPECT_EQ(status.scores(0).label(), "dense");
  EXPECT_EQ(status.scores(0).answered(), 12);
  EXPECT_EQ(status.scores(0).correct(), 6);
  EXPECT_EQ(status.scores(0).wanted(), 12);
  EXPECT_TRUE(driver().request("w", 1).wait().finished());
}

TEST_P(EvaluationCore, RefusesByNameWhoSendsNoReplies) {
  wire::Hello old = introduction("ancient");
  old.clear_replies();
  old.set_build("0.0.9");
  const Refused refused = hello(old).refused();
  EXPECT_EQ(refused.reason(), Refused::REASON_RELEASE);
  EXPECT_THAT(refused.message(), Names("ancient", "0.0.9"));
  EXPECT_EQ(driver().status().counters().mismatched(), 1);
}

TEST_P(EvaluationCore, RefusesDevicesOfAnotherKind) {
  wire::Hello other = introduction("gpu");
  other.set_device("cuda:0 NVIDIA H200, 139 GiB");
  const Refused refused = hello(other).refused();
  EXPECT_EQ(refused.reason(), Refused::REASON_DEVICE);
  EXPECT_THAT(refused.message(), Names("gpu", "cpu", "cuda:0 NVIDIA H200"));
  other.set_device("cpux");
  EXPECT_EQ(hello(other).refused().reason(), Refused::REASON_DEVICE);
  other.set_device("cpu");
  EXPECT_TRUE(hello(other).has_welcome());
}

TEST_P(EvaluationCore, RefusesWhoHasNotTheDataOfEveryTask) {
  add_second_task();
  wire::Hello hello_of = introduction("w");
  ASSERT_TRUE(hello(hello_of).has_welcome());
  hello_of.mutable_more(0)->set_sha256("other bytes");
  const Refused other = hello(hello_of).refused();
  EXPECT_EQ(other.reason(), Refused::REASON_DATASET);
  EXPECT_THAT(other.message(), Names("second", "of the second", "other bytes"));
  hello_of.clear_more();
  hello_of.set_build("0.1.7");
  const Refused old = hello(hello_of).refused();
  EXPECT_EQ(old.reason(), Refused::REASON_RELEASE);
  EXPECT_THAT(old.message(), Names("w", "0.1.7"));
}

// Histories do not say the task of an episode.
TEST_P(EvaluationCore, AnEpisodeThatIsLeasedAgainAfterAKillIsOfItsTask) {
  add_second_task();
  arrive("w");
  const auto leases = driver().leases("w", 64);
  std::map<int64_t, uint32_t> tasks;
  for (const wire::Lease& lease : leases) tasks[lease.episode()] = lease.task();
  EXPECT_EQ(std::ranges::count_if(tasks, [](const auto& entry) { return entry.second == 1; }), 6);
  driver().crash();
  arrive("w");  // without its leases
  const auto again = driver().leases("w", 64);
  EXPECT_EQ(again.size(), leases.size());
  for (const wire::Lease& lease : again) EXPECT_EQ(lease.task(), tasks.at(lease.episode()));
  finish("w");
}

TEST_P(EvaluationCore, RejectsResultsWithoutReplies) {
  arrive("w");
  const wire::Lease lease = driver().leases("w", 1).at(0);
  wire::EpisodeResult without = result(lease);
  without.mutable_outcomes(1)->clear_reply();
  const wire::Ack ack = driver().answer("w", without);
  EXPECT_EQ(ack.verdict(), wire::Ack::VERDICT_REJECTED);
  EXPECT_THAT(ack.message(), Names("outcome 1", "no reply"));
  EXPECT_THAT(kept_, IsEmpty());
  EXPECT_EQ(driver().leases("w", 1).at(0).attempt(), 2);
}

TEST_P(EvaluationCore, AnswersOfALeavingWorkerAreKeptWithTheirRepliesAndOnlyTheRestIsAsked) {
  arrive("w");
  const wire::Lease lease = driver().leases("w", 1).at(0);
  wire::Envelope message;
  message.mutable_release()->add_leases(lease.lease());
  wire::PartialResult& partial = *message.mutable_release()->add_partial();
  partial.set_lease(lease.lease());
  partial.set_episode(lease.episode());
  for (const int place : {1, 2}) add_reply(lease, lease.questions(place), &partial);
  driver().send("w", message, {lease.lease()});
  EXPECT_EQ(kept_.size(), 2u);
  driver().crash();
  arrive("w");
  const wire::Lease rest = driver().leases("w", 1).at(0);
  EXPECT_EQ(rest.episode(), lease.episode());
  EXPECT_THAT(rest.questions(), ElementsAre(0, 3));
  finish("w");
  EXPECT_EQ(answer("w", rest).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(kept_.size(), wanted());
  EXPECT_EQ(driver().status().stage(), "finished");
}

TEST_P(EvaluationCore, AResultThatWasNotAckedIsTakenByTheNextStart) {
  arrive("w");
  const wire::Lease lease = driver().leases("w", 1).at(0);
  driver().crash();
  ASSERT_TRUE(hello(introduction("w"), {lease.lease()}).has_welcome());
  EXPECT_EQ(answer("w", lease).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(kept_.size(), 4u);
}

TEST_P(EvaluationCore, WhatIsKeptAndNotCommittedIsNotAskedAgain) {
  arrive("w");
  const wire::Lease lease = driver().leases("w", 1).at(0);
  driver().crash_before_commit(true);
  answer("w", lease);
  EXPECT_EQ(kept_.size(), 4u);
  EXPECT_EQ(driver().core().leases().num_open(), 0u) << "its episode is withdrawn";
  ASSERT_TRUE(hello(introduction("w"), {lease.lease()}).has_welcome());
  EXPECT_EQ(answer("w", lease).verdict(), wire::Ack::VERDICT_STALE);  // forget it
  finish("w");
  EXPECT_EQ(kept_.size(), wanted());
}

TEST_P(EvaluationCore, WhatIsAskedMayGrowAndShrinkFromStartToStart) {
  arrive("w");
  finish("w");
  schedules_["more"] = std::vector<int32_t>(8, 16);
  repeats_ = 3;
  questions_ = 8;
  const size_t before = kept_.size();
  driver().crash();
  EXPECT_EQ(driver().status().stage(), "evaluate");
  arrive("w");
  const wire::Lease open = driver().leases("w", 1).at(0);
  EXPECT_EQ(label_of(open), "dense");
  finish("w");
  EXPECT_EQ(answer("w", open).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(kept_.size(), wanted());
  EXPECT_GT(kept_.size(), before);

  schedules_["last"] = std::vector<int32_t>(8, 4);
  driver().crash();
  arrive("w");
  EXPECT_EQ(label_of(driver().leases("w", 1).at(0)), "last");
  schedules_.erase("last");
  driver().crash();
  EXPECT_EQ(driver().core().leases().num_open(), 0u);
  EXPECT_EQ(driver().status().stage(), "finished");
}

TEST_P(EvaluationCore, AnswersOfAnotherMeanwhileWithdrawTheEpisodeAndAskTheRest) {
  arrive("w");
  const wire::Lease lease = driver().leases("w", 1).at(0);
  GivenAnswer given{
      .schedule = label_of(lease), .repeat = 0, .result = {.question = 2, .score = 1}, .text = {}};
  keep({&given, 1});
  driver().crash();
  arrive("w");
  EXPECT_THAT(driver().leases("w", 1).at(0).questions(), ElementsAre(0, 1, 3, 4));
}

TEST_P(EvaluationCore, WhatIsGivenUpIsAskedAgainByTheNextStart) {
  arrive("w");
  const wire::Lease first = driver().leases("w", 1).at(0);
  driver().fail("w", first, "a prompt is too long");
  while (true) {
    const auto leases = driver().leases("w", 1);
    if (leases.empty()) break;
    if (leases[0].episode() == first.episode())
      driver().fail("w", leases[0], "a prompt is too long");
    else
      answer("w", leases[0]);
  }
  EXPECT_EQ(driver().status().stage(), "finished");
  EXPECT_EQ(driver().core().evaluation()->given_up(), 4);
  EXPECT_EQ(kept_.size(), wanted() - 4);
  EXPECT_THAT(driver().status().given_up(0).reason(), testing::HasSubstr("too long"));
  driver().crash();
  EXPECT_EQ(driver().status().stage(), "evaluate");
  arrive("w");
  finish("w");
  EXPECT_EQ(kept_.size(), wanted());
}

TEST_P(EvaluationCore, OperatorsPauseAndCordonItAndFindNothingToLearn) {
  arrive("w");
  EXPECT_TRUE(driver().control(wire::Control::ACTION_PAUSE).done());
  EXPECT_TRUE(driver().request("w", 1).wait().paused());
  EXPECT_TRUE(driver().control(wire::Control::ACTION_RESUME).done());
  for (const auto action :
       {wire::Control::ACTION_STOP, wire::Control::ACTION_TARGET, wire::Control::ACTION_BOUNDS})
    EXPECT_THAT(driver().control(action, 5, 0.5).message(), Names("evaluate"));
  EXPECT_FALSE(driver().control(wire::Control::ACTION_EPISODES, 50).done());
  EXPECT_FALSE(driver().control(wire::Control::ACTION_HELDOUT_QUESTIONS).done());
  driver().crash();
  EXPECT_EQ(driver().status().steering_size(), 2);
}

// Whatever happens, each question is answered once, and none is asked that has an answer by then.
TEST_P(EvaluationCore, AnswersEveryQuestionOnceThroughKillsAndLosses) {
  add_second_task();
  max_attempts_ = 1000;  // no bad luck uses them up
  const int rounds = GetParam() == Storage::kMemory ? 60 : 6;
  for (int seed = 0; seed < rounds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    kept_.clear();
    driver_.reset();
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
    const std::vector<std::string> workers = {"a", "b", "c"};
    std::map<std::string, std::vector<wire::Lease>>
        held;  // by the workers, who do not know what became of them
    const auto numbers = [&](const std::string& name) {
      std::vector<int64_t> leases;
      for (const wire::Lease& lease : held[name]) leases.push_back(lease.lease());
      return leases;
    };
    const auto greet = [&] {
      for (const std::string& name : workers)
        ASSERT_TRUE(hello(introduction(name), numbers(name)).has_welcome());
    };
    greet();
    for (int step = 0; step < 2000 && driver().status().stage() != "finished"; ++step) {
      const std::string& name = workers[random() % workers.size()];
      std::vector<wire::Lease>& mine = held[name];
      if (chance(3)) {  // the evaluating process is killed
        driver().crash();
        greet();
      }
      if (chance(2)) mine.clear();  // a worker is killed and never heard of again under these leases
      if (chance(20)) driver().clock().advance(std::chrono::seconds(random() % 40));
      driver().tick();
      if (mine.size() < 2 || chance(30)) {
        const wire::Envelope reply = driver().request(name, 1, numbers(name));
        for (const wire::Lease& lease : reply.grant().leases()) {
          for (const uint32_t question : lease.questions())
            EXPECT_FALSE(kept_.contains({label_of(lease), lease.sampling_seed(), question}))
                << "asked and answered: " << lease.ShortDebugString();
          mine.push_back(lease);
        }
      } else if (chance(15)) {  // it is stopped with a part of the answers
        wire::Envelope message;
        const wire::Lease lease = mine.back();
        mine.pop_back();
        message.mutable_release()->add_leases(lease.lease());
        wire::PartialResult& partial = *message.mutable_release()->add_partial();
        partial.set_lease(lease.lease());
        partial.set_episode(lease.episode());
        for (const uint32_t question : lease.questions())
          if (chance(50)) add_reply(lease, question, &partial);
        driver().crash_before_commit(chance(10));
        driver().send(name, message, numbers(name));
      } else {
        const wire::Lease lease = mine.front();
        driver().crash_before_commit(chance(10));
        const wire::Ack ack = answer(name, lease);
        // Without an ack it is sent again.
        if (ack.verdict() != wire::Ack::VERDICT_UNSPECIFIED) mine.erase(mine.begin());
      }
      driver().crash_before_commit(false);
      if (!driver().core().everyone_heard_finished() && chance(1)) greet();
    }
    EXPECT_EQ(driver().status().stage(), "finished");
    EXPECT_EQ(kept_.size(), wanted());
  }
}

TEST(EvaluationSpec, HasNothingOfARunThatLearns) {
  EXPECT_NO_THROW(validate(evaluation_spec()));
  wire::RunSpec spec = evaluation_spec();
  spec.set_episodes(3);
  spec.mutable_policy()->set_name("pairs");
  spec.mutable_evaluation()->set_device("tpu");
  spec.set_preflight_questions(5);
  EXPECT_THAT([&] { validate(spec); }, testing::ThrowsMessage<InvalidArgument>(Names(
                                           "episodes", 3, "policy", "pairs", "tpu", "preflight_questions")));
  spec = evaluation_spec();
  wire::EvaluationTask& more = *spec.mutable_evaluation()->add_more();
  more.mutable_task()->mutable_train()->set_questions(3);
  more.set_questions_per_episode(4);
  more.mutable_generation()->set_dtype("float16");
  more.mutable_generation()->set_keys("high");
  more.mutable_generation()->set_weights("fp8");
  EXPECT_THAT(
      [&] { validate(spec); },
      testing::ThrowsMessage<InvalidArgument>(
          Names("evaluation.more.questions_per_episode", 4, 3, "evaluation.more.generation.dtype", "float16",
                "evaluation.more.generation.keys", "high", "evaluation.more.generation.weights", "fp8")));
  EXPECT_THAT([] { require_learner(evaluation_spec(), "runs/e"); },
              testing::ThrowsMessage<Mismatch>(Names("runs/e", "replies.jsonl")));
  EXPECT_NO_THROW(require_learner(example_spec(), "runs/e"));
}

}  // namespace
}  // namespace allot::aggregator
