// `allot tune` from outside, with a worker that simulates its model: real processes, sockets, history and
// files, and everything that may go wrong in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>

#include "aggregator/learned_costs.h"
#include "aggregator/run_data.h"
#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "policy/schedule.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/app/run_command.h"
#include "tests/app/tune_run.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(Tune, WholeRunEndsWithAVerdictAndItsFiles) {
  const auto result = run_command(tune());
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  EXPECT_THAT(result.out, Names("uniform", "learned", "dense", "95%", "McNemar", "schedule.json"));
  // The model has one KV head for its two query heads: at 1k keys 2 of 64 samples over 8 layers of 1024 rows.
  EXPECT_THAT(result.out, Names("learned against dense", "of the replies cut off", "1.56% at 1k",
                                "at 128k keys, at most", "again:", "allot tune --run"));
  const auto schedule = read_schedule_file(run_ / "schedule.json");
  EXPECT_EQ(schedule.schedule.total(), 64);
  EXPECT_EQ(schedule.conditions.model.id, "small-model");
  ASSERT_TRUE(schedule.evaluation.paired.has_value());
  EXPECT_THAT(read_file(run_ / "report.html"), HasSubstr("<svg"));
  EXPECT_FALSE(std::filesystem::is_empty(run_ / "tb"));
  EXPECT_THAT(result.err, HasSubstr("finished |"));
}

TEST_F(Tune, LooksAtDenseAndTheEvenScheduleBeforeItLearns) {
  const auto result = run_command(tune({"--preflight", "24", "--price-per-hour", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  EXPECT_THAT(result.err, HasSubstr("preflight |"));
  EXPECT_THAT(result.out, Names("preflight  dense", "of 24 right", "preflight  uniform", "cut off"));
  EXPECT_THAT(read_file(run_ / "report.html"), HasSubstr("Before learning"));
  EXPECT_EQ(aggregator::episode_rows(run_, "preflight").size(), 12u);
  const auto status = run_command({tool(), "status", "--run", run_.string()});
  EXPECT_THAT(status.out, Names("preflight dense", "of 24 right"));
  const auto object =
      nlohmann::json::parse(run_command({tool(), "status", "--run", run_.string(), "--json"}).out);
  const nlohmann::json& dense = object.at("preflight").at("schedules").at(0);
  EXPECT_EQ(dense.at("n"), 24);
  EXPECT_EQ(dense.at("accuracy"), dense.at("correct").get<double>() / 24);
  EXPECT_LE(dense.at("interval_95").at(0), dense.at("accuracy"));
  EXPECT_GE(dense.at("interval_95").at(1), dense.at("accuracy"));
}

TEST_F(Tune, ARunThatHasNothingToLearnEndsWithTheReasonAndWithoutASchedule) {
  const auto words = tune({"--preflight", "24", "--total", "60000"});
  for (const char* time : {"first", "again"}) {
    auto command = words;
    std::erase(command, "64");  // the total of the other tests
    command.erase(std::ranges::find(command, "--total"));
    const auto result = run_command(command);
    EXPECT_EQ(result.code, 1) << time;
    EXPECT_THAT(result.err,
                Names("stopped before learning", "60000 samples", "--total", "--ignore-preflight"));
    EXPECT_THAT(result.out, AllOf(Names("preflight  stopped"), Not(Names("learned against dense"))));
    EXPECT_THAT(result.out, Names("warning", "7500 samples"));
  }
  EXPECT_FALSE(std::filesystem::exists(run_ / "schedule.json"));
  EXPECT_THAT(read_file(run_ / "report.html"), Names("stopped", "60000 samples"));
  EXPECT_EQ(learning_rows().size(), 0u);
}

TEST_F(Tune, JsonResultHoldsScheduleScoresAndFiles) {
  const auto result = run_command(tune({"--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json.at("stage"), "finished");
  EXPECT_EQ(json.at("episodes"), 40);
  EXPECT_EQ(json.at("schedule").size(), 8u);
  EXPECT_EQ(json.at("scores").at("dense").at("n"), 12);
  EXPECT_EQ(json.at("scores").at("dense").at("samples").size(), 0u);
  EXPECT_TRUE(json.at("paired").at("p_value").is_number());
  EXPECT_TRUE(json.at("preflight").is_null());
  const auto& verdict = json.at("verdict");
  EXPECT_FALSE(verdict.at("settled"));
  EXPECT_TRUE(verdict.at("outlook").is_null());
  EXPECT_TRUE(verdict.at("paired_to_dense").at("p_value").is_number());
  EXPECT_EQ(verdict.at("replies").at("dense").at("n"), 12);
  EXPECT_EQ(verdict.at("value_rows").size(), 8u);
  EXPECT_THAT(verdict.at("command").get<std::string>(), Names("allot tune", "--total 64", "--episodes 40"));
  EXPECT_TRUE(std::filesystem::exists(json.at("files").at("schedule").get<std::string>()));
}

TEST_F(Tune, FinishedRunIsShownAgainAndItsFilesAreRewritten) {
  const auto first = run_command(tune());
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string schedule = read_file(run_ / "schedule.json");
  std::filesystem::remove(run_ / "schedule.json");
  std::filesystem::remove(run_ / "report.html");
  const auto again = run_command(tune());
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, AllOf(Names("finished"), Not(HasSubstr("started"))));
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(read_file(run_ / "schedule.json"), schedule);
  EXPECT_TRUE(std::filesystem::exists(run_ / "report.html"));
}

TEST_F(Tune, KilledWorkerIsStartedAgainAndNothingIsLost) {
  stop_in_the_middle();
  RunningCommand command(tune());
  const pid_t worker = process_in(command.error_line_with("worker-1 started"));
  ASSERT_TRUE(command.error_line_with("20/40"));
  ::kill(worker, SIGKILL);
  go_on();
  const auto result = command.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Names("worker-1", "signal", 9));
  expect_whole_run();
}

TEST_F(Tune, KilledAggregatorIsStartedAgainAndNothingIsLost) {
  stop_in_the_middle();
  RunningCommand command(tune());
  const pid_t aggregator = process_in(command.error_line_with("aggregator started"));
  ASSERT_TRUE(command.error_line_with("20/40"));
  ::kill(aggregator, SIGKILL);
  go_on();
  const auto result = command.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, Names("worker-1", "signal", 9));
  expect_whole_run();
}

TEST_F(Tune, LearnsFromDivergencesThoughItsWorkerIsKilledAndIsVerifiedOnAnswers) {
  stop_in_the_middle();
  RunningCommand command(tune({"--reward", "divergence"}));
  const pid_t worker = process_in(command.error_line_with("worker-1 started"));
  const auto half = command.error_line_with("20/40");
  ASSERT_TRUE(half);
  EXPECT_THAT(*half, HasSubstr("nats"));
  ::kill(worker, SIGKILL);
  go_on();
  const auto result = command.wait();
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  for (const auto& row : learning_rows()) EXPECT_EQ(row.kind, RewardKind::kDivergence);
  for (const auto& row : aggregator::episode_rows(run_, "verify")) EXPECT_EQ(row.kind, RewardKind::kAnswers);
  const auto schedule = read_schedule_file(run_ / "schedule.json");
  ASSERT_TRUE(schedule.calibration.has_value());
  EXPECT_EQ(schedule.calibration->reward, "divergence");
  EXPECT_GT(schedule.schedule.samples[0], 12) << "nearly everything depends on layer 0";
  const std::string report = read_file(run_ / "report.html");
  EXPECT_THAT(report, AllOf(HasSubstr("divergence, nats"), HasSubstr("nothing was generated")));
  EXPECT_THAT(result.out, Names("uniform", "learned", "dense", "95%"));
}

TEST_F(Tune, AMixedRunGoesOnToAnswers) {
  const auto result =
      run_command(tune({"--policy", "pairs", "--reward", "mixed", "--divergence-episodes", "25"}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  int64_t divergences = 0;
  for (const auto& row : learning_rows()) {
    EXPECT_EQ(row.kind == RewardKind::kDivergence, row.episode < 26) << "whole pairs";
    divergences += row.kind == RewardKind::kDivergence;
  }
  EXPECT_EQ(divergences, 26);
  EXPECT_EQ(read_schedule_file(run_ / "schedule.json").calibration->reward, "mixed");
  EXPECT_THAT(read_file(run_ / "report.html"), Names("divergences", 25));
}

TEST_F(Tune, KeepsTheModelOfItsLearnerForOtherTotals) {
  const auto result =
      run_command(tune({"--policy", "auto", "--reward", "mixed", "--divergence-episodes", "36"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto file = read_schedule_file(run_ / "schedule.json");
  ASSERT_TRUE(file.costs);
  EXPECT_EQ(file.costs->model, policy::CostModel::kDivergence);
  EXPECT_EQ(file.costs, aggregator::learned_costs(run_));
  const auto exported = run_command({tool(), "export", "--schedule", run_ / "schedule.json", "--total", "96",
                                     "--format", "schedule", "--out", directory_ / "96.json"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_THAT(exported.err, Names(96, "re-solved", 64, "not verified"));
  EXPECT_EQ(read_schedule_file(directory_ / "96.json").schedule.total(), 96);
  const auto inspected = run_command({tool(), "inspect", directory_ / "96.json"});
  EXPECT_THAT(inspected.out, AllOf(Names("re-solved", 64, "not verified"), Not(HasSubstr("accuracy"))));
  // Shown again, by whatever release, a run keeps what its learner once said.
  auto kept = file;
  kept.costs->scales[0] += 1e-9;
  write_schedule_file(run_ / "schedule.json", kept);
  ASSERT_EQ(run_command(tune({"--policy", "auto", "--reward", "mixed", "--divergence-episodes", "36"})).code,
            0);
  EXPECT_EQ(read_schedule_file(run_ / "schedule.json").costs, kept.costs);
}

TEST_F(Tune, AsksForTheVerificationOfOtherTotalsWithWhatTheRunHas) {
  const auto seen = directory_ / "seen";
  const std::string model = std::string(ALLOT_SIMULATED_DIR) + "/allot-model";
  auto words =
      tune_with_worker("[ \"$1\" = verify ] || exec " + model + " \"$@\"\necho \"$@\" >> " + seen.string());
  words.insert(words.end(), {"--frontier", "96,32"});
  const auto result = run_command(words);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string asked = read_file(seen);
  EXPECT_THAT(asked, HasSubstr("verify --model " + small_.model.string()));
  EXPECT_THAT(asked, HasSubstr("--total 32,64,96 --equal-even --limit 12 --device cpu"));
  EXPECT_THAT(asked, HasSubstr("--run " + run_.string()));
}

TEST_F(Tune, AFailedVerificationOfOtherTotalsNamesItsLogAndLeavesTheResult) {
  const std::string model = std::string(ALLOT_SIMULATED_DIR) + "/allot-model";
  auto words = tune_with_worker("[ \"$1\" = verify ] || exec " + model + " \"$@\"\nexit 3");
  words.insert(words.end(), {"--frontier", "96"});
  const auto result = run_command(words);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names(96, "frontier.log", 3));
  EXPECT_TRUE(std::filesystem::exists(run_ / "schedule.json"));
}

TEST_F(Tune, OtherTotalsThatCannotBeVerifiedAreRefusedBeforeTheRunBegins) {
  for (const auto& [totals, named] :
       {std::pair<const char*, std::vector<std::string>>{"96,3", {"--frontier", "3", "8"}},
        {"96,x", {"\"x\""}}}) {
    const auto result = run_command(tune({"--frontier", totals}));
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.err, NamesAll(named));
    EXPECT_FALSE(std::filesystem::exists(run_ / "spec.json"));
  }
}

TEST_F(Tune, InterruptedRunGoesOnByTheSameCommandAsIfNothingHadHappened) {
  stop_in_the_middle();
  {
    RunningCommand command(tune());
    ASSERT_TRUE(command.error_line_with("20/40"));
    command.send_signal(SIGINT);
    const auto result = command.wait();
    EXPECT_EQ(result.code, 130) << result.err;
    EXPECT_THAT(result.err, Names("stopped"));
    EXPECT_EQ(result.out, "");
  }
  const auto before = learning_rows();
  EXPECT_EQ(before.size(), 20u);
  const wire::Counters counters = aggregator::read_run(run_).counters;
  EXPECT_EQ(counters.released(), 1);
  EXPECT_EQ(counters.preempted(), 0) << "a person stopped it";
  go_on();
  ASSERT_EQ(run_command(tune()).code, 0);
  expect_whole_run();
  const auto interrupted = learning_rows();
  for (size_t at = 0; at < before.size(); ++at) EXPECT_EQ(interrupted[at].episode, before[at].episode);

  // A worker of capacity one asks for the next schedule after the answer to the last, so both runs learn the
  // same.
  run_ = directory_ / "uninterrupted";
  ASSERT_EQ(run_command(tune()).code, 0);
  const auto straight = learning_rows();
  ASSERT_EQ(interrupted.size(), straight.size());
  for (size_t at = 0; at < straight.size(); ++at) {
    EXPECT_EQ(interrupted[at].samples, straight[at].samples) << at;
    EXPECT_EQ(interrupted[at].reward, straight[at].reward) << at;
  }
}

TEST_F(Tune, LossOfTheMachineCountsItsLeasesAsPreempted) {
  stop_in_the_middle();
  RunningCommand command(tune());
  ASSERT_TRUE(command.error_line_with("20/40"));
  command.send_signal(SIGTERM);
  EXPECT_EQ(command.wait().code, 130);
  const wire::Counters counters = aggregator::read_run(run_).counters;
  EXPECT_EQ(counters.released(), 1);
  EXPECT_EQ(counters.preempted(), 1);
}

TEST_F(Tune, ChildrenEndWithAKilledParentAndTheRunGoesOn) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1),
            0);  // orphans become ours, so that their end can be waited for
  stop_in_the_middle();
  RunningCommand command(tune());
  const pid_t aggregator = process_in(command.error_line_with("aggregator started"));
  const pid_t worker = process_in(command.error_line_with("worker-1 started"));
  ASSERT_TRUE(command.error_line_with("20/40"));
  command.send_signal(SIGKILL);
  EXPECT_EQ(command.wait().code, 128 + SIGKILL);
  EXPECT_EQ(::waitpid(worker, nullptr, 0), worker);
  EXPECT_EQ(::waitpid(aggregator, nullptr, 0), aggregator);
  go_on();
  ASSERT_EQ(run_command(tune()).code, 0);
  expect_whole_run();
}

TEST_F(Tune, SecondTuneOnOneRunDirectoryIsRefused) {
  stop_in_the_middle();
  RunningCommand command(tune());
  ASSERT_TRUE(command.error_line_with("20/40"));
  const auto second = run_command(tune());
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err,
              StartsWith("allot tune: another aggregator works on run directory " + run_.string()));
  command.send_signal(SIGTERM);
  EXPECT_EQ(command.wait().code, 130);
}

TEST_F(Tune, RunDirectoryOfAnotherSpecIsRefusedWithTheFieldsThatDiffer) {
  ASSERT_EQ(run_command(tune()).code, 0);
  const std::string spec = read_file(run_ / "spec.json");
  const std::string schedule = read_file(run_ / "schedule.json");
  const auto result = run_command(tune({"--seed", "2", "--estimator", "iid"}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("--estimator", "joint", "iid", "--seed", 1, 2));
  EXPECT_EQ(read_file(run_ / "spec.json"), spec);
  EXPECT_EQ(read_file(run_ / "schedule.json"), schedule);
}

TEST_F(Tune, AnAdapterReachesTheWorkersAndEveryResultNamesIt) {
  const auto adapter = directory_ / "lora";
  write_small_adapter(adapter, 4);
  const auto config = directory_ / "tune.conf";
  write_file_atomically(config, "adapter = " + adapter.string() + "\n");
  const auto result = run_command(tune({"--config", config.string()}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  const auto identity = read_schedule_file(run_ / "schedule.json").conditions.model.adapter;
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->id, "lora");
  EXPECT_THAT(read_file(run_ / "report.html"), AllOf(HasSubstr("lora"), HasSubstr(identity->fingerprint)));

  const auto inspected = run_command({tool(), "inspect", run_.string()});
  EXPECT_EQ(inspected.code, 0) << inspected.out;
  EXPECT_THAT(inspected.out, Names(adapter));
  // The same run without it, or with another, is another run.
  const auto without = run_command(tune());
  EXPECT_EQ(without.code, 3);
  EXPECT_THAT(without.err, Names("--model", "adapter", "none", "lora", identity->fingerprint));
  write_small_adapter(adapter, 5);
  const auto other = run_command(tune({"--adapter", adapter.string()}));
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("--model", "adapter.fingerprint", identity->fingerprint));
  const auto changed = run_command({tool(), "inspect", run_.string()});
  EXPECT_EQ(changed.code, 1);
  EXPECT_THAT(changed.out, Names("problem", adapter, identity->fingerprint));
}

TEST_F(Tune, ATaskFileReachesTheWorkersAndTheRunKeepsIt) {
  const auto task = directory_ / "mine.json";
  const std::string text =
      R"json({"allot_task": 1, "name": "mine", "version": 3, "prompt": "{question}",
              "gold": {"pattern": "#### (.*)"}, "grade": {"by": "program"}})json";
  write_file_atomically(task, text);
  // Which program grades is for whoever starts the worker to say.
  const auto without = run_command(tune({"--task", task.string()}));
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, Names("mine", "--grader"));

  const auto result = run_command(tune({"--task", task.string(), "--grader", "cat"}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  EXPECT_EQ(read_file(run_ / "task.json"), text);
  EXPECT_THAT(result.out, Names("--task", run_ / "task.json"));
  const auto conditions = read_schedule_file(run_ / "schedule.json").conditions;
  EXPECT_EQ(conditions.task.name, "mine");
  EXPECT_EQ(conditions.task.version, 3);
  EXPECT_EQ(conditions.task.prompt_style, "file");
  EXPECT_EQ(conditions.task.definition_sha256, sha256_hex(text));
  // Any other text is another task.
  write_file_atomically(task, text + "\n");
  const auto other = run_command(tune({"--task", task.string(), "--grader", "cat"}));
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("--task", task));
}

TEST_F(Tune, WorkersRunCodeOnlyWhereThatIsAllowed) {
  const auto task = directory_ / "code.json";
  write_file_atomically(task, R"json({"allot_task": 1, "name": "code", "version": 1, "prompt": "{question}",
      "gold": {"pattern": "#### (.*)"}, "grade": {"by": "python", "program": "{reply}"}})json");
  const auto without = run_command(tune({"--task", task.string()}));
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, Names("code", "--allow-code-execution"));
  const auto both = run_command(tune({"--task", task.string(), "--grader", "cat", "--allow-code-execution"}));
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, Names("--grader", "--allow-code-execution"));
  const auto result = run_command(tune({"--task", task.string(), "--allow-code-execution"}));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_whole_run();
  EXPECT_THAT(result.out, HasSubstr(" --allow-code-execution "));
  EXPECT_THAT(read_file(run_ / "report.html"), HasSubstr(" --allow-code-execution "));
}

TEST_F(Tune, OtherWeightsThanTheRunsAreRefused) {
  ASSERT_EQ(run_command(tune()).code, 0);
  std::string weights = read_file(small_.model / "model.safetensors");
  weights.back() = '\2';
  write_file_atomically(small_.model / "model.safetensors", weights);
  const auto result = run_command(tune());
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("--model", "weights_fingerprint"));
}

TEST_F(Tune, WorkerThatNeverComesUpEndsTheRunWithItsLastWords) {
  const auto result =
      run_command(tune_with_worker("echo 'allot worker: no memory for the weights' >&2; exit 1"));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names("worker-1", 1, 5, "allot worker: no memory for the weights"));
}

TEST_F(Tune, WorkerThatDoesNotFitTheRunEndsItAtItsFirstStart) {
  const auto result = run_command(tune_with_worker("echo 'allot worker: other weights' >&2; exit 3"));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("worker-1", 3, "allot worker: other weights"));
  EXPECT_EQ(count_tokens(result.err, "worker-1 started"), 1u);
}

TEST_F(Tune, RunWithoutVerificationStillExportsItsSchedule) {
  const auto result = run_command(tune({"--heldout-questions", "0"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(read_schedule_file(run_ / "schedule.json").schedule.total(), 64);
  EXPECT_THAT(result.out, Not(HasSubstr("McNemar")));
}

TEST_F(Tune, StatusAnswersFromTheAggregatorAndAfterwardsFromTheHistory) {
  const std::vector<std::string> status = {tool(), "status", "--run", run_.string(), "--json"};
  stop_in_the_middle();
  RunningCommand command(tune());
  ASSERT_TRUE(command.error_line_with("20/40"));
  const auto live = run_command(status);
  ASSERT_EQ(live.code, 0) << live.err;
  EXPECT_EQ(nlohmann::json::parse(live.out).at("running"), true);
  EXPECT_EQ(nlohmann::json::parse(live.out).at("episodes_done"), 20);
  EXPECT_EQ(nlohmann::json::parse(live.out).at("workers").at(0).at("worker"), "worker-1");
  go_on();
  ASSERT_EQ(command.wait().code, 0);

  const auto after = run_command(status);
  ASSERT_EQ(after.code, 0) << after.err;
  const auto json = nlohmann::json::parse(after.out);
  EXPECT_EQ(json.at("running"), false);
  EXPECT_EQ(json.at("stage"), "finished");
  EXPECT_EQ(json.at("episodes_done"), 40);
  EXPECT_EQ(json.at("scores").size(), 3u);
}

TEST_F(Tune, InspectShowsTheRunTheNamesOfItsDataAndAMissingDataFile) {
  constexpr std::string_view kUsual = "\"question\"";
  for (const auto& file : {small_.train, small_.heldout}) {
    std::string text = read_file(file);
    for (size_t at = text.find(kUsual); at != std::string::npos; at = text.find(kUsual))
      text.replace(at, kUsual.size(), "\"problem\"");
    write_file_atomically(file, text);
  }
  ASSERT_EQ(run_command(tune({"--question-field", "problem"})).code, 0);
  const auto good = run_command({tool(), "inspect", run_.string(), "--json"});
  EXPECT_EQ(good.code, 0) << good.out;
  const auto facts = nlohmann::json::parse(good.out);
  EXPECT_EQ(facts.at("kind"), "run");
  const auto schedule = nlohmann::json::parse(
      run_command({tool(), "inspect", (run_ / "schedule.json").string(), "--json"}).out);
  for (const auto& found : {facts, schedule}) {
    EXPECT_EQ(found.at("question_field"), "problem");
    EXPECT_FALSE(found.contains("answer_field")) << "the usual name";
  }
  std::filesystem::remove(small_.train);
  const auto bad = run_command({tool(), "inspect", run_.string()});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out, Names("problem", small_.train));
}

}  // namespace
}  // namespace allot::app
