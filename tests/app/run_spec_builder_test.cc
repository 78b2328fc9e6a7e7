#include "app/run/run_spec_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "app/files/schedule_file.h"
#include "app/report/run_again.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "tests/app/condition_fields.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/app/small_run.h"
#include "tests/names.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

class RunSpecBuilder : public SmallRun {
 protected:
  // Builds the run, and the one that its command gives; returns the conditions.
  evaluation::Conditions expect_the_same_again() {
    const wire::RunSpec spec = build_run_spec(run_);
    const auto directory = small_.model.parent_path() / "again";
    // Where a run keeps its task.
    std::filesystem::create_directories(directory);
    if (spec.task().has_definition())
      write_file_atomically(aggregator::task_path(directory), spec.task().definition());
    const std::vector<std::string> words = run_again(spec, directory, "cat").list();
    RunOptions again;
    OptionSet set("tune", "", "");
    declare_run_options(set, &again);
    std::string grader;  // which tune declares
    set.text("grader", &grader, "COMMAND", "");
    EXPECT_EQ(set.parse(std::span(words).subspan(2)), OptionSet::Parsed::kRun);
    EXPECT_EQ(again.run, directory);
    EXPECT_EQ(grader, "cat");
    const wire::RunSpec made = build_run_spec(again);
    EXPECT_THAT(wire::differences(spec, made), IsEmpty());
    EXPECT_EQ(worker::conditions_of(made), worker::conditions_of(spec));
    return worker::conditions_of(spec);
  }
};

TEST_F(RunSpecBuilder, SpecHoldsFingerprintsCountsAndAbsolutePaths) {
  const wire::RunSpec spec = build_run_spec(run_);
  EXPECT_EQ(spec.model().id(), "small-model");
  EXPECT_EQ(spec.model().layers(), 8);
  EXPECT_EQ(spec.model().config_sha256(), sha256_file(small_.model / "config.json"));
  EXPECT_EQ(spec.model().tokenizer_sha256(), sha256_file(small_.model / "tokenizer.json"));
  EXPECT_EQ(spec.model().weights_fingerprint().size(), 64u);
  EXPECT_EQ(spec.task().train().sha256(), sha256_file(small_.train));
  EXPECT_EQ(spec.task().train().questions(), 24u);
  EXPECT_EQ(spec.task().heldout().questions(), 12u);
  EXPECT_EQ(spec.task().heldout_questions(), 12u);
  EXPECT_EQ(spec.task().prompt_style(), "plain");
  EXPECT_EQ(spec.policy().total(), 64);
  EXPECT_EQ(spec.lease_ms(), 120'000);
  EXPECT_TRUE(std::filesystem::path(spec.model_path()).is_absolute());
}

TEST_F(RunSpecBuilder, TheCommandThatRunsItAgainGivesTheSameSpec) {
  const auto adapter = small_.model.parent_path() / "lora";
  write_small_adapter(adapter, 4);
  run_.adapter = adapter;
  run_.until = "settled";
  run_.most_episodes = 700;
  run_.gain_floor = 0.7;
  run_.preflight = 12;
  run_.ignore_preflight = true;
  run_.price_per_hour = 2.5;
  run_.heldout_questions = 7;
  run_.policy.by_flag["gain"] = 3;
  run_.policy.start = "33,8,7,3,4,2,3,4";
  run_.policy.bounds = "3:3,5-7:2-";
  run_.reward = "mixed";
  run_.divergence_episodes = 40;
  run_.divergence_questions = 3;
  run_.attention.estimator = kernels::Estimator::kFlash;
  run_.attention.prefill = kernels::Prefill::kDense;
  run_.attention.tile = 64;
  run_.generation.temperature = 0.3;
  run_.generation.max_new_tokens = 77;
  run_.seed = 9;
  expect_the_same_again();
}

TEST_F(RunSpecBuilder, TheCommandThatRunsItAgainSaysEveryCondition) {
  ConditionFields fields(worker::conditions_of(build_run_spec(run_)));
  const auto again = [&] { fields.see(expect_the_same_again()); };
  run_.adapter = small_.model.parent_path() / "lora";
  write_small_adapter(*run_.adapter, 4);
  run_.attention = {.estimator = kernels::Estimator::kJoint,
                    .unit = kernels::BudgetUnit::kRows,
                    .prefill = kernels::Prefill::kDense,
                    .tile = 64,
                    .score_stage = kernels::ScoreStage::kBernoulli,
                    .score_budget = 5,
                    .mean_group_query = true};
  set_parameter(&run_.attention, "value-norms", 0);  // not what tune takes by itself
  again();
  run_.attention.estimator = kernels::Estimator::kIid;
  run_.attention.unit = kernels::BudgetUnit::kSamples;
  run_.attention.parameters = kernels::default_parameters();
  run_.generation = {.dtype = "float32",
                     .weights = "fp8-logits",
                     .keys = "high",
                     .temperature = 0.25,
                     .top_p = 0.5,
                     .repetition_penalty = 1.25,
                     .max_new_tokens = 33};
  run_.seed = 5;
  run_.prompt = "boxed";
  std::swap(run_.data, run_.heldout);
  run_.heldout_questions = 7;
  run_.questions = 2;
  again();
  run_.prompt = "auto";
  run_.task = small_.model.parent_path() / "mine.json";
  write_file_atomically(run_.task, R"({"allot_task": 1, "name": "mine", "version": 7, "prompt": "{question}",
                                       "grade": {"by": "program"}})");
  run_.data = small_.model.parent_path() / "train.csv";
  run_.heldout = small_.model.parent_path() / "heldout.csv";
  write_file_atomically(run_.data, "problem,solution\na?,1\nb?,2\nc?,3\n");
  write_file_atomically(run_.heldout, "problem,solution\nd?,1\n");
  run_.fields = {.question = "problem", .answer = "solution"};
  run_.heldout_questions.reset();
  again();
  EXPECT_EQ(fields.never_varied(), ConditionFields::of_model());
  // Of the command that grades a spec says only that there is one.
  const wire::RunSpec spec = build_run_spec(run_);
  EXPECT_THAT(run_again(spec, "run").line(), HasSubstr(" --grader COMMAND "));
  EXPECT_THAT(run_again(spec, "run", "python3 grade.py").line(), HasSubstr(" --grader 'python3 grade.py' "));
  run_.task = (small_.model.parent_path() / "code.json").string();
  write_file_atomically(run_.task,
                        R"json({"allot_task": 1, "name": "code", "version": 1, "prompt": "{question}",
      "grade": {"by": "python", "program": "{reply}"}})json");
  EXPECT_THAT(run_again(build_run_spec(run_), "run").line(), HasSubstr(" --allow-code-execution "));
}

TEST_F(RunSpecBuilder, AnAdapterIsPartOfTheModelAndItsPlaceIsNot) {
  const wire::RunSpec without = build_run_spec(run_);
  EXPECT_FALSE(without.model().has_adapter());
  const auto adapter = small_.model.parent_path() / "lora", copy = small_.model.parent_path() / "copy";
  write_small_adapter(adapter, 4);
  write_small_adapter(copy, 4);
  run_.adapter = std::filesystem::relative(adapter);
  const wire::RunSpec with = build_run_spec(run_);
  EXPECT_EQ(with.model().adapter().id(), "lora");
  EXPECT_EQ(with.model().adapter().path(), adapter.string());
  EXPECT_EQ(with.model().adapter().fingerprint().size(), 64u);
  EXPECT_EQ(with.model().weights_fingerprint(), without.model().weights_fingerprint());
  EXPECT_THAT(wire::differences(without, with),
              ElementsAre(Names("model.adapter", "none", "lora", with.model().adapter().fingerprint())));
  run_.adapter = copy;
  EXPECT_THAT(wire::differences(with, build_run_spec(run_)), IsEmpty());
  write_small_adapter(copy, 5);
  EXPECT_THAT(wire::differences(with, build_run_spec(run_)),
              ElementsAre(Names("model.adapter.fingerprint", with.model().adapter().fingerprint())));
  run_.adapter = small_.model;
  EXPECT_THAT(fault<NotFound>(), Names(small_.model, "adapter_config.json"));
}

TEST_F(RunSpecBuilder, SameOptionsGiveTheSameRunWhereverTheyAreSpelledFrom) {
  const wire::RunSpec first = build_run_spec(run_);
  run_.model = std::filesystem::relative(small_.model);
  const wire::RunSpec second = build_run_spec(run_);
  EXPECT_THAT(wire::differences(first, second), IsEmpty());
  EXPECT_EQ(first.model_path(), second.model_path());
}

TEST_F(RunSpecBuilder, EveryOptionThatChangesResultsChangesTheSpec) {
  set_parameter(&run_.attention, "value-norms", 0);
  const wire::RunSpec before = build_run_spec(run_);
  const auto expect_change = [&](auto change, const char* field) {
    RunOptions changed = run_;
    change(changed);
    const auto differences = wire::differences(before, build_run_spec(changed));
    ASSERT_EQ(differences.size(), 1u) << field;
    EXPECT_THAT(differences.front(), Names(field));
  };
  expect_change([](RunOptions& run) { run.policy.total = 65; }, "policy.total: 64 != 65");
  expect_change([](RunOptions& run) { run.policy.floor = 0; }, "policy.floor");
  expect_change([](RunOptions& run) { run.policy.bounds = "1:4"; }, "policy.bounds");
  expect_change([](RunOptions& run) { run.policy.max_policy_lag = 3; }, "policy.max_policy_lag");
  expect_change([](RunOptions& run) { run.policy.by_flag["pairs_per_update"] = 7; },
                "policy.pairs_per_update");
  expect_change([](RunOptions& run) { run.policy.by_flag["perturbation"] = 2; }, "policy.perturbation");
  expect_change([](RunOptions& run) { run.policy.by_flag["gain"] = 2; }, "policy.gain");
  expect_change([](RunOptions& run) { run.policy.by_flag["gain_offset"] = 2; }, "policy.gain_offset");
  expect_change([](RunOptions& run) { run.policy.by_flag["gain_decay"] = 0.7; }, "policy.gain_decay");
  expect_change([](RunOptions& run) { run.policy.by_flag["perturbation_decay"] = 0.2; },
                "policy.perturbation_decay");
  expect_change([](RunOptions& run) { run.episodes = 7; }, "episodes");
  expect_change([](RunOptions& run) { run.questions = 7; }, "questions_per_episode");
  expect_change([](RunOptions& run) { run.divergence_questions = 7; }, "divergence_questions");
  expect_change([](RunOptions& run) { run.reward = "divergence"; }, "reward_kind");
  expect_change([](RunOptions& run) { run.reward = "mixed"; }, "divergence_episodes");
  // The prompt style brings its generation defaults unless they are given.
  const evaluation::Generation plain =
      evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain)->generation_defaults();
  expect_change(
      [&](RunOptions& run) {
        run.prompt = "boxed";
        run.generation = options_of(plain);
      },
      "task.prompt_style");
  expect_change([](RunOptions& run) { run.heldout_questions = 7; }, "task.heldout_questions");
  expect_change([](RunOptions& run) { run.attention.estimator = kernels::Estimator::kIid; },
                "attention.estimator");
  expect_change([](RunOptions& run) { set_parameter(&run.attention, "value-norms", 1); },
                "attention.value-norms: none != 1");
  expect_change([](RunOptions& run) { run.attention.prefill = kernels::Prefill::kDense; },
                "attention.prefill");
  expect_change([](RunOptions& run) { run.attention.tile = 128; }, "attention.tile");
  expect_change([](RunOptions& run) { run.attention.unit = kernels::BudgetUnit::kRows; }, "attention.unit");
  expect_change([](RunOptions& run) { run.attention.mean_group_query = true; }, "attention.mean_group_query");
  expect_change([](RunOptions& run) { run.generation.dtype = "float32"; }, "generation.dtype");
  expect_change([](RunOptions& run) { run.generation.weights = "fp8"; }, "generation.weights");
  expect_change([](RunOptions& run) { run.generation.keys = "split"; }, "generation.keys");
  expect_change([](RunOptions& run) { run.generation.temperature = 0.6; }, "generation.temperature");
  expect_change([](RunOptions& run) { run.generation.top_p = 0.95; }, "generation.top_p");
  expect_change([](RunOptions& run) { run.generation.repetition_penalty = 1.1; },
                "generation.repetition_penalty");
  expect_change([](RunOptions& run) { run.generation.max_new_tokens = 7; }, "generation.max_new_tokens");
  expect_change([](RunOptions& run) { run.seed = 7; }, "seed");
  expect_change([](RunOptions& run) { run.lease_seconds = 7; }, "lease_ms");
  expect_change([](RunOptions& run) { run.max_attempts = 7; }, "max_attempts");
  expect_change([](RunOptions& run) { run.cross_check = 0.25; }, "cross_check");
}

TEST_F(RunSpecBuilder, TheSpecHasEachParameterByNameAndAsTheReleaseBeforeReadIt) {
  run_.policy.by_flag = {{"gain", 11}};
  run_.policy.by_pair = {{"pairs_per_update", 7}};
  const wire::PolicySpec spec = build_run_spec(run_).policy();
  const std::map<std::string, double> parameters(spec.parameters().begin(), spec.parameters().end());
  EXPECT_THAT(parameters, ElementsAre(Pair("gain", 11), Pair("gain_decay", 0.8), Pair("gain_offset", 5),
                                      Pair("pairs_per_update", 7), Pair("perturbation", 1.25),
                                      Pair("perturbation_decay", 0.1)));
  // One that came later is there where it is not at its default.
  run_.policy.by_pair["averaging"] = 2;
  EXPECT_EQ(build_run_spec(run_).policy().parameters().at("averaging"), 2);
  const auto old_field = [&](const char* name) {
    const auto* field = wire::PolicySpec::descriptor()->FindFieldByName(name);
    const auto& reflection = *wire::PolicySpec::GetReflection();
    return field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_INT32
               ? reflection.GetInt32(spec, field)
               : reflection.GetDouble(spec, field);
  };
  EXPECT_EQ(old_field("gain"), 11);
  EXPECT_EQ(old_field("gain_offset"), 5);
  EXPECT_EQ(old_field("pairs_per_update"), 7);
  // Those of other learners have their defaults: the release before refuses a 0.
  EXPECT_EQ(old_field("learning_rate"), 0.02);
  EXPECT_EQ(old_field("episodes_per_update"), 10);
}

TEST_F(RunSpecBuilder, AParameterOfAnotherPolicyIsRefusedNamingThoseOfThisOne) {
  run_.policy.name = "reinforce";
  run_.policy.by_flag = {{"gain", 11}};
  run_.policy.by_pair = {{"pairs_per_update", 7}};
  EXPECT_THAT(fault<UsageError>(), Names("--gain", "pairs_per_update", "--policy reinforce",
                                         "--learning-rate", "--episodes-per-update"));
}

TEST_F(RunSpecBuilder, AParameterGivenInBothWaysOrOutOfRangeIsRefused) {
  run_.policy.by_flag = run_.policy.by_pair = {{"gain", 11}};
  EXPECT_THAT(fault<UsageError>(), Names("--gain", "--policy-option gain"));
  run_.policy.by_flag.clear();
  run_.policy.by_pair = {{"pairs_per_update", 1.5}};
  EXPECT_THAT(fault<UsageError>(), Names("pairs_per_update", 1.5, 1, 100000));
}

// The spec.json of a run that the release before began, and the same options now.
TEST_F(RunSpecBuilder, ARunOfTheReleaseBeforeIsTheSameRun) {
  for (const char* policy : {"pairs", "reinforce"}) {
    run_.policy.name = policy;
    const wire::RunSpec now = build_run_spec(run_);
    wire::RunSpec before = now;
    before.mutable_policy()->clear_parameters();
    EXPECT_THAT(wire::differences(before, now), IsEmpty());
    EXPECT_EQ(aggregator::policy_config(before).parameters, aggregator::policy_config(now).parameters);
    EXPECT_FALSE(aggregator::policy_config(before).parameters.empty());
  }
}

TEST_F(RunSpecBuilder, OnlyAlgorithm1LearnsFromOutcomesOfAnyAgeByDefault) {
  const auto lag = [&](const char* policy) {
    run_.policy.name = policy;
    return build_run_spec(run_).policy().max_policy_lag();
  };
  EXPECT_EQ(lag("pairs"), 50);
  EXPECT_EQ(lag("reinforce"), 50);
  EXPECT_EQ(lag("reinforce-paper"), policy::kNoPolicyLagLimit);
  run_.policy.max_policy_lag = 7;
  EXPECT_EQ(lag("reinforce-paper"), 7);
}

// What allot calibrate would write for this model under the run's attention.
ScheduleFile calibrated(const wire::RunSpec& spec) {
  ScheduleFile file;
  file.conditions = worker::conditions_of(spec);
  file.conditions.measured_on.reset();
  file.schedule = policy::parse_schedule("33,8,7,3,4,2,3,4");
  file.total = 64;
  file.run_id = "calibrate-64";
  file.tool_version = "0.1.0";
  return file;
}

TEST_F(RunSpecBuilder, AStartIsPartOfTheSpecWrittenOrFromAFile) {
  const wire::RunSpec even = build_run_spec(run_);
  EXPECT_EQ(even.policy().start(), "");
  EXPECT_TRUE(aggregator::policy_config(even).start.samples.empty());
  run_.policy.start = "33,8,7,3,4,2,3,4";
  const wire::RunSpec written = build_run_spec(run_);
  EXPECT_EQ(aggregator::policy_config(written).start, policy::parse_schedule("33,8,7,3,4,2,3,4"));
  EXPECT_THAT(wire::differences(even, written), ElementsAre(Names("policy.start", "33,8,7,3,4,2,3,4")));
  EXPECT_THAT(wire::differences(written, wire::spec_from_json(wire::to_json(written), "spec.json")),
              IsEmpty());
  const auto file = small_.model.parent_path() / "calibrated.json";
  write_schedule_file(file, calibrated(even));
  run_.policy.start = file.string();
  EXPECT_THAT(wire::differences(written, build_run_spec(run_)), IsEmpty());
  run_.policy.start = "uniform:8";
  EXPECT_EQ(build_run_spec(run_).policy().start(), "8,8,8,8,8,8,8,8");
}

TEST_F(RunSpecBuilder, BoundsArePartOfTheSpecAndOfWhatLearns) {
  const wire::RunSpec free = build_run_spec(run_);
  RunOptions given;
  OptionSet set("tune", "", "");
  declare_run_options(set, &given);
  const std::vector<std::string> words = {"--model",   run_.model.string(),
                                          "--data",    run_.data.string(),
                                          "--run",     "runs/bounded",
                                          "--policy",  "pairs",
                                          "--total",   "64",
                                          "--bounds",  "3:4,5-6:2-12,7:-8",
                                          "--heldout", run_.heldout.string()};
  ASSERT_EQ(set.parse(words), OptionSet::Parsed::kRun);
  const wire::RunSpec bounded = build_run_spec(given);
  EXPECT_THAT(wire::differences(free, bounded), ElementsAre(Names("policy.bounds", "3:4,5-6:2-12,7:-8")));
  const wire::RunSpec read = wire::spec_from_json(wire::to_json(bounded), "spec.json");
  const policy::PolicyConfig config = aggregator::policy_config(read);
  EXPECT_EQ(config.bounds, policy::parse_bounds("3:4,5-6:2-12,7:-8"));
  const policy::Schedule start = policy::make_policy(config)->recommend();
  EXPECT_EQ(start.samples[3], 4);
  EXPECT_EQ(start.total(), 64);
  run_.policy.bounds = "3:4,3:5";
  EXPECT_THAT(fault<InvalidArgument>(), Names("layer 3", "twice"));
  run_.policy.bounds = "8:4";
  EXPECT_THAT(fault<InvalidArgument>(), Names("8:4", "layers from 0 to 7"));
  run_.policy.bounds = "3=4";
  EXPECT_THAT(fault<InvalidArgument>(), Names("3=4", "LAYERS:RANGE"));
}

TEST_F(RunSpecBuilder, AStartMadeForAnotherAttentionOrTotalIsRefusedWithTheDifferences) {
  const auto file = small_.model.parent_path() / "calibrated.json";
  write_schedule_file(file, calibrated(build_run_spec(run_)));
  run_.policy.start = file.string();
  run_.policy.total = 72;
  run_.attention.estimator = kernels::Estimator::kIid;
  EXPECT_THAT(fault<Mismatch>(), Names("--start", file, "attention.estimator", "iid", "total 64 against 72"));
  run_.attention = kernels::usual_method();
  run_.policy.start = "33,8,7,3,4,2,3,4";
  EXPECT_THAT(fault<InvalidArgument>(), Names("start", 64, 72));
  run_.policy.start = "dense";
  EXPECT_THAT(fault<UsageError>(), Names("--start dense"));
  run_.policy.start = "no-such-file";
  EXPECT_THAT(fault<NotFound>(), Names("no-such-file"));
  std::string weights = read_file(small_.model / "model.safetensors");
  weights.back() = '\2';
  write_file_atomically(small_.model / "model.safetensors", weights);
  run_.policy.total = 64;
  run_.policy.start = file.string();
  EXPECT_THAT(fault<Mismatch>(), Names("weights_fingerprint"));
}

TEST_F(RunSpecBuilder, OtherWeightsAreAnotherRun) {
  const wire::RunSpec before = build_run_spec(run_);
  std::string weights = read_file(small_.model / "model.safetensors");
  weights.back() = '\2';
  write_file_atomically(small_.model / "model.safetensors", weights);
  const auto differences = wire::differences(before, build_run_spec(run_));
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_THAT(differences.front(), Names("model.weights_fingerprint"));
}

TEST_F(RunSpecBuilder, MissingOptionsAreNamedTogether) {
  const RunOptions none;
  run_ = none;
  EXPECT_THAT(fault<UsageError>(),
              Names("--model", "missing", "--data", "missing", "--total", "missing", "--heldout", "missing"));
}

TEST_F(RunSpecBuilder, NoVerificationNeedsNoHeldoutFile) {
  run_.heldout.clear();
  run_.heldout_questions = 0;
  EXPECT_EQ(build_run_spec(run_).task().heldout_questions(), 0u);
}

TEST_F(RunSpecBuilder, MoreHeldOutQuestionsThanTheFileHasAreRefusedWhenAskedFor) {
  run_.heldout_questions = 13;
  EXPECT_THAT(fault<UsageError>(), Names("--heldout-questions", 13, 12));
  run_.heldout_questions = 12;
  EXPECT_EQ(build_run_spec(run_).task().heldout_questions(), 12u);
}

TEST_F(RunSpecBuilder, TotalBelowTheFloorOfAllLayersNamesBothNumbers) {
  run_.policy.total = 7;
  EXPECT_THAT(fault<InvalidArgument>(), Names("total", 7, 8));
}

TEST_F(RunSpecBuilder, ATotalThatTheLearnerDoesNotTakeIsRefusedBeforeTheRunBegins) {
  run_.policy.total = 65'536;
  EXPECT_EQ(build_run_spec(run_).policy().total(), 65'536);
  run_.policy.name = "auto";
  EXPECT_THAT(fault<InvalidArgument>(), Names("total", 65'536, 65'535, 8, "layers", "auto", "pairs"));
}

TEST_F(RunSpecBuilder, MoreQuestionsThanTheFileHasIsRefused) {
  run_.questions = 25;
  EXPECT_THAT(fault<InvalidArgument>(), Names("questions_per_episode", 25, 24));
  run_.questions = 2;
  run_.divergence_questions = 25;
  EXPECT_THAT(fault<InvalidArgument>(), Names("divergence_questions", 25, 24));
}

TEST_F(RunSpecBuilder, VerifyingOnTheTrainingQuestionsIsRefused) {
  run_.heldout = run_.data;
  EXPECT_THAT(fault<UsageError>(), Names(24, 24, "--heldout"));
}

TEST_F(RunSpecBuilder, HeldOutQuestionsThatAreLearnedOnAreRefusedWithTheirLines) {
  const std::string train = read_file(small_.train);
  const std::string second_line =
      train.substr(train.find('\n') + 1, train.find('\n', train.find('\n') + 1) - train.find('\n'));
  write_file_atomically(small_.heldout, read_file(small_.heldout) + second_line);
  EXPECT_THAT(fault<UsageError>(), Names(1, 13, "--heldout", "rows 13", "rows 2"));
  // Without a verification there is nothing to hold out.
  run_.heldout_questions = 0;
  EXPECT_EQ(build_run_spec(run_).task().heldout_questions(), 0u);
}

TEST_F(RunSpecBuilder, FieldsOfTheDataArePartOfTheRunAndOfNoSpecWithoutThem) {
  EXPECT_THAT(wire::to_json(build_run_spec(run_)), Not(HasSubstr("_field")));
  const auto data = small_.train.parent_path() / "train.csv", heldout = small_.train.parent_path() / "h.csv";
  write_file_atomically(data, "problem,question,answer\n\"a, b?\",c?,#### 1\n");
  write_file_atomically(heldout, "answer,question,problem\n#### 1,d?,e?\n");
  RunOptions given;
  OptionSet set("tune", "", "");
  declare_run_options(set, &given);
  const std::vector<std::string> words = {
      "--model",          run_.model.string(), "--data",  data.string(), "--heldout",   heldout.string(),
      "--question-field", "problem",           "--total", "64",          "--questions", "1"};
  ASSERT_EQ(set.parse(words), OptionSet::Parsed::kRun);
  const wire::RunSpec spec = wire::spec_from_json(wire::to_json(build_run_spec(given)), "spec.json");
  // What a worker that has only the spec reads.
  const auto task = evaluation::make_task(worker::task_source(spec.task()));
  EXPECT_EQ(worker::load(*task, spec.task().train()).questions.at(0).text, "a, b?");
  EXPECT_EQ(worker::load(*task, spec.task().heldout()).questions.at(0).text, "e?");
  EXPECT_THAT(run_again(spec, "run").list(), IsSupersetOf({"--question-field", "problem"}));
  given.fields.question = "question";
  EXPECT_THAT(wire::differences(spec, build_run_spec(given)),
              ElementsAre(Names("task.train.question_field", "problem", "'question'"),
                          Names("task.heldout.question_field", "problem", "'question'")));
  EXPECT_THAT(wire::differences(build_run_spec(given), spec), SizeIs(2)) << "a run of the usual fields";
}

TEST_F(RunSpecBuilder, DataOfAnotherFormAreRefusedWithWhatToDo) {
  run_.data = "nowhere/train.jsonl";
  EXPECT_THAT(fault<NotFound>(), Names("nowhere/train.jsonl", "openai/grade-school-math"));
  run_.data = small_.train;
  run_.fields.answer = "question";
  EXPECT_THAT(fault<UsageError>(), Names("--question-field", "--answer-field", "question"));
}

TEST_F(RunSpecBuilder, ATotalOfRowsIsForEstimatorsWhoseHeadsChooseTogether) {
  EXPECT_EQ(build_run_spec(run_).attention().unit(), "") << "as in specs from before it";
  run_.attention.unit = kernels::BudgetUnit::kRows;
  EXPECT_EQ(build_run_spec(run_).attention().unit(), "rows");
  run_.attention.estimator = kernels::Estimator::kSys;
  EXPECT_THAT(fault<UsageError>(), Names("--unit", "rows", "sys", "joint", "pooled", "level"));
}

TEST_F(RunSpecBuilder, AStartInAnotherUnitIsRefused) {
  const auto file = small_.model.parent_path() / "calibrated.json";
  write_schedule_file(file, calibrated(build_run_spec(run_)));
  run_.policy.start = file.string();
  run_.attention.unit = kernels::BudgetUnit::kRows;
  EXPECT_THAT(fault<Mismatch>(), Names("--start", file, "attention.unit", "samples", "rows"));
}

TEST_F(RunSpecBuilder, ScoreStageAndBudgetBelongTogether) {
  run_.attention.score_stage = kernels::ScoreStage::kBernoulli;
  EXPECT_THAT(fault<UsageError>(), Names("--score-stage", "bernoulli", "--score-budget", 0));
  run_.attention.score_budget = 16;
  EXPECT_EQ(build_run_spec(run_).attention().score_budget(), 16);
}

}  // namespace
}  // namespace allot::app
