#include "app/report/learning_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/report/learning_figures.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "evaluation/json_fields.h"
#include "tests/aggregator/core_driver.h"
#include "tests/app/report/example_run.h"
#include "tests/app/report/xml.h"
#include "tests/message_of.h"
#include "tests/names.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using aggregator::CoreDriver;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;

// 10 episodes of 4 questions, an update after every 4 of them, 6 held-out questions.
wire::RunSpec small_spec(uint32_t seed, const std::string& learner) {
  wire::RunSpec spec = example_run().spec;
  policy::PolicyConfig policy{.name = learner, .total = 64};
  if (learner == "pairs") policy.parameters = {{"pairs_per_update", 2}};
  *spec.mutable_policy() = aggregator::policy_spec(policy);
  spec.set_run_id("run of seed " + std::to_string(seed));
  spec.set_seed(seed);
  spec.set_episodes(10);
  spec.set_questions_per_episode(4);
  spec.mutable_task()->set_heldout_questions(6);
  spec.set_lease_ms(60'000);
  spec.set_max_attempts(3);
  return spec;
}

// A run that was carried out, with its directory.
struct Done {
  CoreDriver driver;
  std::filesystem::path directory = driver.file().parent_path();

  explicit Done(
      uint32_t seed, const std::string& learner = "pairs",
      const std::function<void(wire::RunSpec*)>& change = [](auto*) {})
      : driver(aggregator::Storage::kSqlite, changed(small_spec(seed, learner), change)) {
    write_file_atomically(aggregator::spec_path(directory), wire::to_json(driver.spec()));
    // Two workers, of which one runs two episodes at a time and ends one of them every 300 ms.
    driver.hello("slow");
    driver.hello("w");
    const wire::Lease slow = driver.leases("slow", 1).at(0);
    for (std::vector<wire::Lease> leases; !(leases = driver.leases("w", 2)).empty();) {
      for (const wire::Lease& lease : leases) {
        driver.clock().advance(std::chrono::milliseconds(300));
        answer("w", lease);
        if (lease.episode() == slow.episode() + 2) answer("slow", slow);
      }
    }
  }
  // Half a second; the more samples the first layer has, the more is right.
  void answer(const std::string& worker, const wire::Lease& lease) {
    driver.answer(worker, aggregator::result_of(lease, lease.samples_size() == 0 ? 4 : lease.samples(0) / 4));
  }
  static wire::RunSpec changed(wire::RunSpec spec, const std::function<void(wire::RunSpec*)>& change) {
    change(&spec);
    return spec;
  }
  LearningRun read(std::vector<int64_t> at = {4, 8, 100}) const {
    std::string why;
    std::optional<LearningRun> run = read_learning_run(directory, at, &why);
    EXPECT_EQ(why, "");
    return run.value();
  }
  // learning.json as eval prints it: every schedule of the points right on one question of 8 more than the
  // one before. `change` is made before it is written.
  void score(const std::function<void(Json*)>& change = [](auto*) {}) const {
    evaluation::Conditions conditions = worker::conditions_of(driver.spec());
    conditions.measured_on->questions = 8;
    conditions.seed = 0;
    Json json = {{"tool_version", "0"}, {"conditions", evaluation::to_json(conditions)}};
    json["schedules"].push_back({{"schedule", "dense"}, {"samples", nullptr}, {"n", 8}, {"correct", 8}});
    int right = 0;
    for (const LearningPoint& point : read().points) {
      std::vector<double> scores(8, 0.0);
      std::fill_n(scores.begin(), ++right, 1.0);
      Json schedule = {{"schedule", point.recommended.to_string()},
                       {"samples", evaluation::samples_json(point.recommended.samples)},
                       {"cut_off", 0}};
      schedule.update(evaluation::to_json(evaluation::accuracy_of(scores)));
      json["schedules"].push_back(schedule);
    }
    change(&json);
    write_file_atomically(directory / kLearningFile, json.dump());
  }
};

TEST(LearningRun, HasWhatWasRecommendedOnItsWay) {
  const Done done(3);
  const LearningRun run = done.read();
  std::vector<int64_t> episodes;
  std::vector<double> seconds;
  for (const LearningPoint& point : run.points) {
    episodes.push_back(point.episodes);
    seconds.push_back(point.worker_seconds);
  }
  EXPECT_THAT(episodes, ElementsAre(0, 4, 8, 10));
  // The third and every later one of the first worker adds the time since the one before.
  EXPECT_THAT(seconds,
              ::testing::Pointwise(::testing::DoubleNear(1e-9),
                                   {0.0, 0.5 + 0.5 + 2 * 0.3, 0.5 + 0.5 + 6 * 0.3, 0.5 + 0.5 + 8 * 0.3}))
      << "of two workers, one with two episodes at a time";
  const std::vector<aggregator::VersionRow> versions = aggregator::read_run(done.directory).versions;
  ASSERT_THAT(versions, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(run.points[i].recommended.samples, versions[i].recommended) << i;
  EXPECT_EQ(run.points[3].recommended, run.points[2].recommended);
  EXPECT_NE(run.points[0].recommended, run.points[1].recommended);

  EXPECT_EQ(run.learner, "pairs pairs-per-update=2, 4 questions");
  EXPECT_EQ(run.total, 64);
  EXPECT_EQ(run.seed, 3u);
  EXPECT_EQ(run.evaluation.learned->questions, 6);
  EXPECT_EQ(run.at(7).episodes, 4);
  EXPECT_EQ(run.at(1000).episodes, 10) << "what it ended with";
}

TEST(LearningRun, GetsAccuraciesFromWhatEvalPrinted) {
  const Done done(3);
  EXPECT_FALSE(done.read().points[1].accuracy.has_value());
  done.score();
  const LearningRun run = done.read();
  EXPECT_EQ(run.points[0].accuracy->correct, 1);
  EXPECT_EQ(run.points[1].accuracy->correct, 2);
  EXPECT_EQ(run.points[1].accuracy->questions, 8);
  EXPECT_EQ(run.conditions.measured_on->questions, 8);
  EXPECT_EQ(run.conditions.seed, 0u);
  EXPECT_EQ(run.seed, 3u);
}

TEST(LearningRun, RefusesAFileThatIsNotOfTheRun) {
  const Done done(3);
  const auto refused = [&]<class Error>(Error*, const std::function<void(Json*)>& change) {
    done.score(change);
    const std::string message = message_of<Error>([&] { done.read(); });
    std::filesystem::remove(done.directory / kLearningFile);
    return message;
  };
  EXPECT_THAT(refused(static_cast<Mismatch*>(nullptr),
                      [](Json* json) { (*json)["conditions"]["attention"]["estimator"] = "iid"; }),
              Names(kLearningFile, "attention.estimator", "iid", "sys"));
  EXPECT_THAT(refused(static_cast<CorruptFile*>(nullptr), [](Json* json) { json->erase("schedules"); }),
              Names(kLearningFile, "schedules"));
  EXPECT_THAT(
      refused(static_cast<CorruptFile*>(nullptr), [](Json* json) { (*json)["schedules"][1]["correct"] = 9; }),
      Names("schedules[1].correct", 9, 8));
}

TEST(LearningRun, SaysWhyARunIsLeftOut) {
  CoreDriver driver(aggregator::Storage::kSqlite, small_spec(1, "pairs"));
  const std::filesystem::path directory = driver.file().parent_path();
  write_file_atomically(aggregator::spec_path(directory), wire::to_json(driver.spec()));
  std::string why;
  EXPECT_FALSE(read_learning_run(directory, {}, &why).has_value());
  EXPECT_THAT(why, HasSubstr("learn"));
  const Done unverified(1, "pairs",
                        [](wire::RunSpec* spec) { spec->mutable_task()->set_heldout_questions(0); });
  EXPECT_FALSE(read_learning_run(unverified.directory, {}, &why).has_value());
  EXPECT_THAT(why, Names("--heldout-questions"));
  EXPECT_THROW(read_learning_run(directory / "none", {}, &why), NotFound);
}

TEST(LearningRun, ItsLearnerIsNamedWithWhatIsNotUsual) {
  const auto named = [](const std::string& learner, const std::function<void(wire::RunSpec*)>& change) {
    return Done(1, learner, change).read().learner;
  };
  EXPECT_EQ(named("reinforce", [](wire::RunSpec* spec) { spec->set_questions_per_episode(16); }),
            "reinforce");
  EXPECT_EQ(named("auto", [](auto*) {}), "auto, answers, 4 questions")
      << "it would ask for divergences first";
  EXPECT_EQ(named("reinforce",
                  [](wire::RunSpec* spec) {
                    spec->set_questions_per_episode(16);
                    spec->mutable_policy()->set_bounds("0:exact,2:4");
                  }),
            "reinforce, bounds 0:exact,2:4");
  EXPECT_EQ(named("reinforce",
                  [](wire::RunSpec* spec) {
                    spec->set_questions_per_episode(16);
                    spec->mutable_policy()->set_start("15,7,7,7,7,7,7,7");
                  }),
            "reinforce, from a start");
}

TEST(Spread, IsThatOfTheRuns) {
  const Spread spread = spread_of(std::vector{0.1, 0.2, 0.6});
  EXPECT_NEAR(spread.mean, 0.3, 1e-12);
  EXPECT_NEAR(spread.deviation.value(), std::sqrt(0.07), 1e-12);
  EXPECT_EQ(spread.low, 0.1);
  EXPECT_EQ(spread.high, 0.6);
  EXPECT_FALSE(spread_of(std::vector{0.1}).deviation.has_value());
}

// A run without a directory: accuracies of the points, of uniform and of learned, of 10 questions.
LearningRun made_run(const std::string& learner, int64_t total, uint32_t seed, std::vector<int> right) {
  const auto accuracy = [](int correct) {
    std::vector<double> scores(10, 0.0);
    std::fill_n(scores.begin(), correct, 1.0);
    return evaluation::accuracy_of(scores);
  };
  LearningRun run{.directory = learner + std::to_string(seed),
                  .learner = learner,
                  .conditions = worker::conditions_of(example_run().spec),
                  .total = total,
                  .seed = seed,
                  .evaluation = {.uniform = accuracy(right.front()), .learned = accuracy(right.back())},
                  .points = {}};
  int64_t episodes = 0;
  for (const int correct : right) {
    run.points.push_back({.episodes = episodes,
                          .worker_seconds = static_cast<double>(episodes * (1 + seed)),
                          .recommended = {{static_cast<int32_t>(episodes), 1}},
                          .accuracy = accuracy(correct)});
    episodes += 10;
  }
  return run;
}

TEST(LearningGroups, AreRunsThatDifferInTheirSeeds) {
  const std::vector<LearningGroup> groups =
      learning_groups({made_run("pairs", 64, 2, {1, 4, 6}), made_run("auto", 64, 1, {1, 9}),
                       made_run("pairs", 64, 1, {1, 2}), made_run("pairs", 32, 1, {0, 0, 3})});
  ASSERT_THAT(groups, SizeIs(3));
  EXPECT_EQ(groups[0].total, 32);
  EXPECT_EQ(groups[1].learner, "pairs");
  EXPECT_EQ(groups[2].learner, "auto");
  const LearningGroup& pairs = groups[1];
  ASSERT_THAT(pairs.runs, SizeIs(2));
  EXPECT_EQ(pairs.runs[0].seed, 1u);
  EXPECT_NEAR(pairs.gain.mean, 0.3, 1e-12);
  EXPECT_NEAR(pairs.gain.low, 0.1, 1e-12);
  EXPECT_NEAR(pairs.gain.high, 0.5, 1e-12);
  EXPECT_FALSE(pairs.dense.has_value());
  // The run of seed 1 ended after 10 episodes, and counts with its end from there on.
  ASSERT_THAT(pairs.curve, SizeIs(3));
  EXPECT_EQ(pairs.curve[2].episodes, 20);
  EXPECT_NEAR(pairs.curve[2].accuracy.mean, 0.4, 1e-12);
  EXPECT_NEAR(pairs.curve[2].worker_seconds, (20 + 60) / 2.0, 1e-12);
  EXPECT_NEAR(pairs.curve[1].accuracy.mean, 0.3, 1e-12);
}

TEST(LearningGroups, WithoutAnEvaluationThereIsNoCurve) {
  LearningRun bare = made_run("pairs", 64, 1, {1, 4, 6});
  bare.points[1].accuracy.reset();
  const std::vector<LearningGroup> groups = learning_groups({bare, made_run("pairs", 64, 2, {1, 4, 6})});
  EXPECT_THAT(groups.at(0).curve, IsEmpty());
  EXPECT_NEAR(groups[0].gain.mean, 0.5, 1e-12);
}

TEST(LearningGroups, RefuseWhatIsNotToBeCompared) {
  const LearningRun first = made_run("pairs", 64, 1, {1, 2});
  LearningRun other = made_run("auto", 64, 1, {1, 2});
  const auto refusal = [&] { return message_of<Mismatch>([&] { learning_groups({first, other}); }); };
  other.conditions.model.weights_fingerprint = std::string(64, 'f');
  EXPECT_THAT(refusal(), Names("pairs1", "auto1", "model.weights_fingerprint"));
  other = made_run("auto", 64, 1, {1, 2});
  other.conditions.measured_on->questions = 7;
  EXPECT_THAT(refusal(), Names("pairs1", "auto1", 200, 7));
  other = made_run("pairs", 64, 1, {1, 2});
  EXPECT_THAT(refusal(), Names("pairs1", 64, "seed 1"));
  other = made_run("auto", 64, 1, {1, 2});
  other.conditions.attention.estimator = kernels::Estimator::kIid;
  EXPECT_THAT(learning_groups({first, other}), SizeIs(2)) << "estimators are compared";
}

TEST(LearningGroups, TheirJsonHasEveryRunAndItsWay) {
  const std::vector<LearningGroup> groups =
      learning_groups({made_run("pairs", 64, 1, {1, 4, 6}), made_run("pairs", 64, 2, {1, 4, 6})});
  const Json json = to_json(groups.at(0));
  EXPECT_EQ(json["learner"], "pairs");
  EXPECT_NEAR(json["gain"]["mean"].get<double>(), 0.5, 1e-12);
  EXPECT_EQ(json["dense"], nullptr);
  EXPECT_EQ(json["curve"][1]["episodes"], 10);
  EXPECT_EQ(json["runs"][1]["seed"], 2);
  EXPECT_EQ(json["runs"][1]["points"][2]["samples"], Json::array({20, 1}));
  EXPECT_EQ(json["runs"][1]["points"][2]["accuracy"]["correct"], 6);
}

TEST(LearningFigures, DrawACurveForEachLearner) {
  const std::vector<LearningGroup> groups = learning_groups(
      {made_run("pairs", 64, 1, {1, 4}), made_run("auto", 64, 1, {1, 9}), made_run("auto", 64, 2, {3, 9})});
  const std::vector<const LearningGroup*> both = {&groups[0], &groups[1]};
  const XmlElement svg = parse_xml(learning_curve_chart(both, LearningCost::kEpisodes).inline_svg());
  EXPECT_THAT(svg.all("path", "line"), SizeIs(2));
  EXPECT_THAT(svg.all("path", "s1"), SizeIs(1)) << "each in a colour of its own";
  std::vector<std::string> tips;
  for (const XmlElement* whisker : svg.all("g", "whisker")) tips.push_back(whisker->all("title").at(0)->text);
  EXPECT_THAT(tips, ElementsAre("pairs after 0 episodes, 0 s: 10.0%", "pairs after 10 episodes, 20 s: 40.0%",
                                "auto after 0 episodes, 0 s: 20.0%", "auto after 10 episodes, 25 s: 90.0%"));
  EXPECT_THAT(learning_curve_chart(both, LearningCost::kWorkerSeconds).inline_svg(),
              testing::AllOf(HasSubstr("Seconds of workers"), HasSubstr("auto (2 seeds)")));
  EXPECT_THAT(gain_chart(both).inline_svg(),
              testing::AllOf(HasSubstr("auto at 64, 2 seeds: +70.0 points"), HasSubstr("even")));
}

TEST(LearningFigures, FilesAreNamedByEstimatorAndTotal) {
  const TemporaryDirectory directory;
  LearningRun bare = made_run("pairs", 16, 1, {1, 4});
  bare.points[0].accuracy.reset();
  LearningRun dense_prefill = made_run("pairs", 64, 1, {1, 4});
  dense_prefill.conditions.attention.prefill = kernels::Prefill::kDense;
  const std::vector<LearningGroup> groups =
      learning_groups({made_run("pairs", 64, 1, {1, 4}), bare, dense_prefill});
  std::vector<std::string> names;
  for (const std::filesystem::path& path : write_learning_plots(groups, directory.path()))
    names.push_back(path.filename().string());
  EXPECT_THAT(names,
              ElementsAre("curve-episodes-sys-64.svg", "curve-seconds-sys-64.svg", "gain-sys.svg",
                          "curve-episodes-sys-2-64.svg", "curve-seconds-sys-2-64.svg", "gain-sys-2.svg"));
}

TEST(AnalyzeLearning, TakesAFolderOfRunsAndWritesPlots) {
  const Done first(1), second(2);
  first.score();
  second.score();
  const TemporaryDirectory folder;
  for (const Done* done : {&first, &second})
    std::filesystem::create_directory_symlink(done->directory,
                                              folder.path() / std::to_string(done->driver.spec().seed()));
  const std::filesystem::path out = folder.path() / "plots";
  const auto printed = [&](const std::vector<std::string>& words) {
    testing::internal::CaptureStdout();
    const int code = run_analyze_learning(words);
    const std::string text = testing::internal::GetCapturedStdout();
    EXPECT_EQ(code, 0);
    return text;
  };
  const std::string table =
      printed({"learning", "--runs", folder.path().string(), "--at", "4", "--out", out.string()});
  EXPECT_THAT(table, Names("pairs pairs-per-update=2", "gain, points", "8 held-out questions"));
  EXPECT_TRUE(std::filesystem::exists(out / "curve-episodes-sys-64.svg"));
  const Json row = Json::parse(printed({"learning", "--runs", first.directory.string(), "--runs",
                                        second.directory.string(), "--at", "4", "--json"}));
  EXPECT_EQ(row["runs"].size(), 2u);
  EXPECT_EQ(row["curve"].size(), 3u);
  EXPECT_EQ(row["curve"][1]["episodes"], 4);
  EXPECT_THAT(message_of<NotFound>([&] {
                run_analyze_learning(std::vector<std::string>{"learning", "--runs", out.string()});
              }),
              Names("--runs", out));
  EXPECT_THAT(message_of<UsageError>([&] {
                run_analyze_learning(std::vector<std::string>{"learning", "--runs", out.string(), "--png"});
              }),
              Names("--png", "--out"));
}

}  // namespace
}  // namespace allot::app
