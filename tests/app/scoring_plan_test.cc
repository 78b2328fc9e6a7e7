// The conditions under which eval, verify and ablate are about to measure.
#include "app/scoring/scoring_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

#include "base/error.h"
#include "base/file.h"
#include "tests/app/condition_fields.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class ScoringPlanTest : public ::testing::Test {
 protected:
  ScoringPlanTest() : directory_(fresh_directory()), small_(write_small_model(directory_)) {}

  // A schedule learned for the small model under conditions that are no option's default.
  ScheduleFile learned() const {
    ScheduleFile file;
    file.conditions.model = model::identify_model(small_.model);
    file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "llama-chat"};
    file.conditions.learned_on = {.sha256 = std::string(64, 'd'), .questions = 24};
    file.conditions.measured_on = {
        .sha256 =
            evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain)->load(small_.heldout).sha256,
        .questions = 12};
    file.conditions.attention = {.estimator = kernels::Estimator::kIid,
                                 .prefill = kernels::Prefill::kDense,
                                 .tile = 64,
                                 .score_stage = kernels::ScoreStage::kBernoulli,
                                 .score_budget = 5,
                                 .mean_group_query = true};
    file.conditions.generation = {.dtype = kernels::DType::kFloat32,
                                  .temperature = 0.25,
                                  .top_p = 0.5,
                                  .repetition_penalty = 1.25,
                                  .max_new_tokens = 33,
                                  .stop = evaluation::StopRule::kEos};
    file.conditions.seed = 11;
    file.schedule = policy::uniform_schedule(8, 4);
    file.total = 32;
    file.run_id = "run";
    file.tool_version = "0.1.0";
    return file;
  }

  std::string written(const ScheduleFile& file, const char* name = "schedule.json") const {
    write_schedule_file(directory_ / name, file);
    return (directory_ / name).string();
  }

  // What `allot eval` with these words is about to do; with --dry-run its config in `dry_run_`.
  ScoringPlan plan(const Words& more) {
    Words words = {"--model", small_.model.string(), "--data", small_.heldout.string()};
    words.insert(words.end(), more.begin(), more.end());
    return plan_of(words);
  }
  ScoringPlan plan_of(const Words& words) {
    ScoringOptions options;
    Words schedules;
    OptionSet set("eval", "summary", "example");
    declare_scoring_options(&set, &options);
    declare_executed_out(&set, &options);
    set.texts("schedule", &schedules, "S", "schedules");
    ScoringPlan made;
    set.resolve_with([&] { made = plan_scoring(schedules, std::nullopt, &options, &set); });
    testing::internal::CaptureStdout();
    const auto parsed = [&] {
      try {
        return set.parse(words);
      } catch (...) {
        testing::internal::GetCapturedStdout();
        throw;
      }
    }();
    const std::string out = testing::internal::GetCapturedStdout();
    if (parsed == OptionSet::Parsed::kDone) dry_run_ = out;
    return made;
  }

  std::string mismatch(const Words& words) {
    try {
      plan(words);
    } catch (const Mismatch& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::string dry_run_;
};

TEST_F(ScoringPlanTest, WhatIsExecutedIsCountedUnderOneScheduleThatSamples) {
  const std::string file = written(learned());
  const auto fault = [&](Words words) {
    words.insert(words.end(), {"--executed-out", directory_ / "executed.json"});
    return message_of<UsageError>([&] { (void)plan(words); });
  };
  EXPECT_EQ(fault({"--schedule", file}), "nothing was thrown");
  EXPECT_THAT(fault({"--schedule", "dense"}), Names("--executed-out", "dense"));
  EXPECT_THAT(fault({"--schedule", file, "--schedule", "uniform:8"}),
              Names("--executed-out", file, "uniform:8"));
}

TEST_F(ScoringPlanTest, AFileThatNamesNoParametersMeansTheirDefaultsAndNotWhatCommandsTakeAlone) {
  ScheduleFile old = learned();
  old.conditions.attention = {.estimator = kernels::Estimator::kJoint};
  const std::string path = written(old);
  EXPECT_EQ(read_file(path).find("value-norms"), std::string::npos);
  EXPECT_EQ(plan({"--schedule", path}).conditions.attention, old.conditions.attention);
  EXPECT_EQ(plan({"--schedule", "uniform:3"}).conditions.attention, kernels::usual_method());
  EXPECT_EQ(plan({"--schedule", "uniform:3", "--estimator", "sys"}).conditions.attention,
            (kernels::AttentionMethod{.estimator = kernels::Estimator::kSys}));
  EXPECT_EQ(plan({"--schedule", "uniform:3", "--value-norms", "0"}).conditions.attention,
            old.conditions.attention);
}

TEST_F(ScoringPlanTest, TakesWhatAScheduleFileSays) {
  const ScheduleFile file = learned();
  const ScoringPlan made = plan({"--schedule", written(file)});
  EXPECT_EQ(made.conditions.task, file.conditions.task);
  EXPECT_EQ(made.conditions.attention, file.conditions.attention);
  EXPECT_EQ(made.conditions.generation, file.conditions.generation);
  EXPECT_EQ(made.conditions.model, file.conditions.model);
  EXPECT_EQ(made.conditions.measured_on, file.conditions.measured_on);
  EXPECT_EQ(made.conditions.seed, 0u);
  EXPECT_FALSE(made.conditions.learned_on);
  EXPECT_EQ(plan_json(made).at("conditions"), evaluation::to_json(made.conditions));
  EXPECT_THAT(plan_json(made).at("differences"), IsEmpty());
  EXPECT_THAT(describe(made), Names("llama-chat", "iid", 0.25, directory_ / "schedule.json"));
}

TEST_F(ScoringPlanTest, UnderAnotherTaskTheTaskDecidesHowItAsksAndHowRepliesAreGenerated) {
  write_file_atomically(directory_ / "bare.json", R"({
    "allot_task": 1, "name": "bare", "version": 1, "prompt": "{question}", "grade": {"by": "exact"},
    "generation": {"max_new_tokens": 17}})");
  const ScheduleFile file = learned();
  const ScoringPlan made = plan({"--schedule", written(file), "--task", (directory_ / "bare.json").string()});
  EXPECT_EQ(made.conditions.task.name, "bare");
  EXPECT_EQ(made.conditions.attention, file.conditions.attention);
  EXPECT_EQ(made.conditions.generation.dtype, kernels::DType::kFloat32);
  EXPECT_EQ(made.conditions.generation.temperature, 0);
  EXPECT_EQ(made.conditions.generation.max_new_tokens, 17);
  EXPECT_THAT(describe(made), Names("task.name", "gsm8k", "bare"));
  // Named or not, its own task is adopted with all that was said of it.
  EXPECT_EQ(plan({"--schedule", written(file), "--task", "gsm8k"}).conditions.generation,
            file.conditions.generation);
}

TEST_F(ScoringPlanTest, AScheduleLearnedWithAnAdapterNeedsThatAdapter) {
  const std::string adapter = directory_ / "lora";
  write_small_adapter(adapter, 4);
  ScheduleFile file = learned();
  file.conditions.model = model::identify_model(small_.model, {.adapter = adapter});
  const std::string path = written(file);
  const ScoringPlan made = plan({"--schedule", path, "--adapter", adapter});
  EXPECT_EQ(made.conditions.model, file.conditions.model);
  EXPECT_EQ(made.options.adapter, adapter);
  EXPECT_THAT(describe(made), Names("lora"));
  EXPECT_THAT(mismatch({"--schedule", path}), Names("adapter", "lora", "null"));
  write_small_adapter(adapter, 5);
  EXPECT_THAT(mismatch({"--schedule", path, "--adapter", adapter}),
              Names("adapter.fingerprint", file.conditions.model.adapter->fingerprint));
}

TEST_F(ScoringPlanTest, AFlagThatChangesAnAdoptedValueIsNamedAsADifference) {
  const std::string path = written(learned());
  const ScoringPlan made =
      plan({"--schedule", path, "--tile", "128", "--top-p", "0.75", "--prompt-style", "boxed"});
  EXPECT_EQ(made.conditions.attention.tile, 128);
  EXPECT_EQ(made.conditions.attention.estimator, kernels::Estimator::kIid);
  EXPECT_EQ(made.conditions.generation.temperature, 0.25);
  const auto difference = [&](const char* field, const Json& there, const Json& here) {
    return Json{{"field", field}, {"schedule", there}, {"here", here}, {"file", path}};
  };
  EXPECT_EQ(plan_json(made).at("differences"),
            Json::array({difference("task.prompt_style", "llama-chat", "boxed"),
                         difference("attention.tile", 64, 128), difference("generation.top_p", 0.5, 0.75),
                         difference("generation.stop", "eos", "answer")}));
  EXPECT_THAT(describe(made), AllOf(Names("attention.tile", 128, 64, path), Not(HasSubstr("as in"))));
}

TEST_F(ScoringPlanTest, AUnitOfRowsIsAdoptedAndPrintedInSamplesAndAFileOfSamplesContradictsIt) {
  ScheduleFile of_samples = learned();
  of_samples.conditions.attention = {.estimator = kernels::Estimator::kJoint};
  ScheduleFile of_rows = of_samples;
  of_rows.conditions.attention.unit = kernels::BudgetUnit::kRows;
  const std::string rows = written(of_rows), samples = written(of_samples, "samples.json");
  const ScoringPlan made = plan({"--schedule", rows});
  EXPECT_EQ(made.conditions.attention.unit, kernels::BudgetUnit::kRows);
  EXPECT_THAT(plan_json(made).at("differences"), IsEmpty());
  EXPECT_THAT(describe(made), Names("joint by rows", "of its 2 query heads"));
  EXPECT_THAT(describe(plan({"--schedule", samples})), Not(HasSubstr("rows")));
  EXPECT_THAT(mismatch({"--schedule", rows, "--schedule", samples}), Names("--unit", "rows", "samples"));
  EXPECT_THAT(mismatch({"--schedule", samples, "--schedule", rows}), Names("--unit", "rows", "samples"));
  const Json differences =
      plan_json(plan({"--schedule", rows, "--schedule", samples, "--unit", "samples"})).at("differences");
  EXPECT_EQ(differences,
            Json::array(
                {{{"field", "attention.unit"}, {"schedule", "rows"}, {"here", "samples"}, {"file", rows}}}));
  ScheduleFile with_norms = of_rows;
  set_parameter(&with_norms.conditions.attention, "value-norms", 1);
  const std::string norms = written(with_norms, "norms.json");
  EXPECT_EQ(plan({"--schedule", norms}).conditions.attention, with_norms.conditions.attention);
  EXPECT_THAT(mismatch({"--schedule", norms, "--schedule", rows}), Names("--value-norms", "1.0", "0.0"));
  EXPECT_THAT(message_of<UsageError>([&] {
                plan({"--schedule", rows, "--estimator", "sys"});
              }),
              Names("--unit", "rows", "sys", "joint"));
}

TEST_F(ScoringPlanTest, OtherQuestionsThanTheFilesAreADifference) {
  const ScoringPlan made = plan_of({"--model", small_.model.string(), "--data", small_.train.string(),
                                    "--schedule", written(learned()), "--limit", "3", "--seed", "5"});
  const Json differences = plan_json(made).at("differences");
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].at("field"), "measured_on.sha256");
  EXPECT_EQ(made.questions(), 3u);
}

TEST_F(ScoringPlanTest, QuestionsOfNamedColumnsOfCsvAreAsked) {
  const auto data = small_.train.parent_path() / "questions.csv";
  write_file_atomically(data, "id,problem,solution\n1,\"How many,\nTom?\",#### 4\n");
  const ScoringPlan made = plan_of({"--model", small_.model.string(), "--data", data.string(),
                                    "--question-field", "problem", "--answer-field", "solution"});
  EXPECT_EQ(made.dataset.questions.at(0).text, "How many,\nTom?");
  const Json measured = plan_json(made).at("conditions").at("measured_on");
  EXPECT_EQ(measured.at("question_field"), "problem");
  EXPECT_EQ(measured.at("answer_field"), "solution");
  EXPECT_EQ(measured.at("questions"), 1);
  const Words usual = {"--model", small_.model.string(), "--data", data.string()};
  EXPECT_THAT(message_of<CorruptFile>([&] { (void)plan_of(usual); }),
              Names("questions.csv: line 1", "question", "problem", "--question-field"));
}

TEST_F(ScoringPlanTest, FilesOfDifferentConditionsAreRefusedUnlessFlagsDecide) {
  ScheduleFile other = learned();
  other.conditions.attention.tile = 128;
  other.conditions.generation.max_new_tokens = 44;
  const Words both = {"--schedule", written(learned()), "--schedule", written(other, "other.json")};
  EXPECT_THAT(mismatch(both), AllOf(Names("--tile", 64, 128, "--max-new-tokens", 33, "other.json"),
                                    Not(Names("--estimator"))));
  Words decided = both;
  for (const char* word : {"--tile", "64", "--max-new-tokens", "44"}) decided.emplace_back(word);
  const ScoringPlan made = plan(decided);
  EXPECT_EQ(made.conditions.attention.tile, 64);
  const Json differences = plan_json(made).at("differences");
  ASSERT_EQ(differences.size(), 2u);
  EXPECT_EQ(differences[0].at("field"), "generation.max_new_tokens");
  EXPECT_EQ(differences[1].at("field"), "attention.tile");
}

TEST_F(ScoringPlanTest, WhatAnOlderFileDoesNotSayComesFromTheTask) {
  ScheduleFile old = learned();
  old.conditions.task.prompt_style = "boxed";
  for (const char* field :
       {"generation.dtype", "generation.temperature", "generation.top_p", "generation.stop",
        "generation.repetition_penalty", "generation.max_new_tokens", "seed"})
    old.conditions.unknown.insert(field);
  const std::string path = written(old, "old.json");
  const auto boxed = evaluation::make_task("gsm8k", evaluation::PromptStyle::kBoxed)->generation_defaults();
  ScoringPlan made = plan({"--schedule", path});
  EXPECT_EQ(made.conditions.generation, boxed);
  EXPECT_EQ(made.conditions.attention, old.conditions.attention);
  EXPECT_THAT(plan_json(made).at("differences"), IsEmpty());
  EXPECT_THAT(describe(made), Names(path, "as far"));
  // Another file may know it.
  ScheduleFile newer = learned();
  newer.conditions.task.prompt_style = "boxed";
  newer.conditions.generation.stop = evaluation::StopRule::kAnswer;
  made = plan({"--schedule", path, "--schedule", written(newer, "newer.json")});
  EXPECT_EQ(made.conditions.generation, newer.conditions.generation);
}

TEST_F(ScoringPlanTest, ExactLayersCanBeAskedForInEveryForm) {
  const auto samples_of = [&](const std::string& argument) {
    return plan({"--schedule", argument}).schedules.front().schedule->samples;
  };
  EXPECT_EQ(samples_of("exact:2+uniform:8"), policy::parse_schedule("exact,exact,8,8,8,8,8,8").samples);
  EXPECT_EQ(samples_of("exact:8+uniform:0"), std::vector<int32_t>(8, kExactLayer));
  EXPECT_EQ(samples_of("exact:0+uniform:3"), std::vector<int32_t>(8, 3));
  EXPECT_EQ(samples_of("exact, 7,1,2,3,4,5,exact"),
            policy::parse_schedule("exact,7,1,2,3,4,5,exact").samples);
  ScheduleFile file = learned();
  file.schedule = policy::parse_schedule("exact,8,8,4,4,4,4,0");
  file.floor = 0;
  EXPECT_EQ(samples_of(written(file)), file.schedule.samples);
}

TEST_F(ScoringPlanTest, FormsOfExactLayersThatAreNoneAreRefused) {
  const auto refusal = [&](const std::string& argument) {
    return message_of<InvalidArgument>([&] { plan({"--schedule", argument}); });
  };
  for (const char* argument :
       {"exact:9+uniform:8", "exact:x+uniform:8", "exact:+uniform:8", "exact:2", "exact:2+", "exact:2+8",
        "exact:2+uniform:", "exact:-1+uniform:8", "uniform:x"})
    EXPECT_THAT(refusal(argument), Names(argument, "exact:K+uniform:N", 8)) << argument;
  EXPECT_THAT(refusal("exact,8"), Names("exact,8", 2, 8, "layers"));
  EXPECT_THROW(plan({"--schedule", "exactly,8,8,8,8,8,8,8"}), NotFound);
}

TEST_F(ScoringPlanTest, AnEvenSpreadLeavesExactLayersExact) {
  const NamedSchedule named = plan({"--schedule", "exact,13,1,0,0,0,0,1"}).schedules.front();
  EXPECT_EQ(even_spread(named).schedule->to_string(), "exact,3,2,2,2,2,2,2");
  EXPECT_THROW((void)even_spread(plan({"--schedule", "exact:8+uniform:1"}).schedules.front()), UsageError);
}

TEST_F(ScoringPlanTest, WithoutAFileTheConditionsAreThoseOfModelAndTask) {
  const ScoringPlan made = plan({"--schedule", "uniform:3"});
  EXPECT_EQ(made.conditions.task.prompt_style, "plain");
  EXPECT_EQ(made.conditions.attention, kernels::usual_method());
  EXPECT_EQ(made.conditions.generation, made.task->generation_defaults());
  EXPECT_THAT(plan_json(made).at("differences"), IsEmpty());
}

TEST_F(ScoringPlanTest, ADryRunPrintsAConfigThatGivesTheSameConditions) {
  for (const Words& words :
       {Words{"--schedule", "uniform:3"},
        {"--schedule", written(learned())},
        {"--schedule", written(learned()), "--tile", "128", "--limit", "2", "--seed", "8"},
        {"--schedule", "dense", "--prompt-style", "boxed"}}) {
    Words dry = words;
    dry.emplace_back("--dry-run");
    const ScoringPlan first = plan(dry);
    const std::string config = dry_run_;
    EXPECT_THAT(config, HasSubstr("\ntemperature = "));
    EXPECT_THAT(config, Not(HasSubstr("auto")));
    write_file_atomically(directory_ / "eval.conf", config);
    const ScoringPlan again = plan_of({"--config", (directory_ / "eval.conf").string()});
    EXPECT_EQ(again.conditions, first.conditions);
    EXPECT_EQ(again.conditions, plan(words).conditions);
    EXPECT_EQ(again.schedules.front().label, first.schedules.front().label);
    plan_of({"--config", (directory_ / "eval.conf").string(), "--dry-run"});
    EXPECT_EQ(dry_run_, config);
  }
}

TEST_F(ScoringPlanTest, TheCommandThatScoresAgainSaysEveryCondition) {
  const ScoringPlan plain = plan({"--schedule", "dense"});
  ConditionFields fields(plain.conditions);
  const auto again = [&](const Words& words, const Words& schedules, const Words& data = {}) {
    Words all = words;
    for (const std::string& schedule : schedules) all.insert(all.end(), {"--schedule", schedule});
    all.insert(all.begin(), {"--model", small_.model.string()});
    all.insert(all.end(), data.begin(), data.end());
    if (data.empty()) all.insert(all.end(), {"--data", small_.heldout.string()});
    const ScoringPlan made = plan_of(all);
    fields.see(made.conditions);
    CommandWords command = scoring_again(made, "eval");
    for (const std::string& schedule : schedules) command.add("schedule", schedule);
    const ScoringPlan repeated = plan_of(Words(command.list().begin() + 2, command.list().end()));
    EXPECT_EQ(repeated.conditions, made.conditions) << command.line();
    EXPECT_EQ(repeated.options.grader, made.options.grader);
    EXPECT_EQ(repeated.options.device, made.options.device);
    EXPECT_EQ(repeated.schedules.size(), made.schedules.size());
    return command.line();
  };
  const std::string adapter = directory_ / "lora", task = directory_ / "mine.json";
  write_small_adapter(adapter, 4);
  write_file_atomically(task, R"({"allot_task": 1, "name": "mine", "version": 7, "prompt": "{question}",
                                  "grade": {"by": "program"}})");
  const auto csv = directory_ / "its questions.csv";
  write_file_atomically(csv, "problem,solution\na?,1\nb?,2\n");

  EXPECT_THAT(again({}, {"dense", "uniform:8"}), HasSubstr(" --schedule dense --schedule uniform:8"));
  again({"--adapter", adapter, "--seed", "5", "--device", "cuda:1"}, {"uniform:8"});
  EXPECT_THAT(again({"--task", task, "--grader", "python3 grade.py", "--question-field", "problem",
                     "--answer-field", "solution"},
                    {"dense"}, {"--data", csv.string()}),
              AllOf(HasSubstr(" --grader 'python3 grade.py' "), HasSubstr("its questions.csv' ")));
  again({"--prompt-style", "boxed", "--dtype", "float32", "--weights", "fp8", "--keys", "split", "--device",
         "cuda", "--temperature", "0.25", "--top-p", "0.5", "--repetition-penalty", "1.25",
         "--max-new-tokens", "33"},
        {"uniform:8"}, {"--data", small_.train.string(), "--limit", "3"});
  again({"--estimator", "joint", "--unit", "rows", "--prefill", "dense", "--tile", "64", "--score-stage",
         "bernoulli", "--score-budget", "5", "--mean-group-query"},
        {"uniform:8"});
  for (const std::string& estimator : kernels::estimator_names(true)) {
    for (const kernels::MethodParameter& parameter :
         kernels::row_of(kernels::parse_estimator(estimator)).parameters) {
      const double other = parameter.value == parameter.max ? parameter.min : parameter.max;
      again({"--estimator", estimator, fmt::format("--{}", parameter.name), fmt::format("{}", other)},
            {"uniform:8"});
    }
  }
  // A schedule file says otherwise, which the command must overrule.
  ScheduleFile file = learned();
  file.conditions.generation.keys = kernels::KeyFormat::kHighPlane;
  EXPECT_THAT(again({"--device", "cuda"}, {written(file)}), Not(HasSubstr("--keys 16-bit")));
  EXPECT_THAT(again({"--keys", "16-bit"}, {written(file)}), HasSubstr(" --keys 16-bit "));
  again({"--mean-group-query=false", "--tile", "256", "--temperature", "0", "--device", "cuda"},
        {written(file)});
  file.conditions.attention.estimator = kernels::Estimator::kJoint;
  file.conditions.attention.unit = kernels::BudgetUnit::kRows;
  set_parameter(&file.conditions.attention, "value-norms", 1);
  again({"--unit", "samples", "--value-norms", "0", "--device", "cuda"}, {written(file, "rows.json")});
  EXPECT_EQ(fields.never_varied(), ConditionFields::of_model());
}

TEST_F(ScoringPlanTest, WhatADeviceHasNotIsRefusedBeforeAnythingIsScored) {
  const auto refused = [&](const Words& words) { return message_of<Unsupported>([&] { plan(words); }); };
  EXPECT_THAT(refused({"--weights", "fp8"}), Names("weights", "fp8", "cpu", "dtype"));
  EXPECT_THAT(refused({"--keys", "high"}), Names("keys", "high", "cpu", "16-bit"));
  EXPECT_THAT(refused({"--weights", "fp8-logits", "--device", "cuda:1-4"}),
              Names("weights", "fp8-logits", 4, "cuda:1-4", "dtype"));
  EXPECT_EQ(plan({"--weights", "fp8", "--device", "cuda"}).conditions.generation.weights,
            model::WeightStorage::kFp8);
  ScheduleFile file = learned();
  file.conditions.generation.weights = model::WeightStorage::kFp8AndLogits;
  EXPECT_THAT(refused({"--schedule", written(file)}), Names("weights", "fp8-logits", "cpu"));
  EXPECT_EQ(plan({"--schedule", written(file), "--weights", "dtype"}).conditions.generation.weights,
            model::WeightStorage::kDtype);
}

TEST_F(ScoringPlanTest, TheSeedOfAScheduleFileIsNotTakenOver) {
  EXPECT_EQ(plan({"--schedule", written(learned())}).conditions.seed, 0u);
  ScoringOptions options;
  OptionSet set("eval", "summary", "example");
  declare_scoring_options(&set, &options);
  EXPECT_THAT(set.help(), ContainsRegex("not\\s+taken\\s+over\\s+from\\s+a\\s+schedule\\s+file"));
}

TEST_F(ScoringPlanTest, ADryRunLooksAtTheFiles) {
  EXPECT_THROW(plan_of({"--model", "nowhere", "--data", "nowhere", "--dry-run"}), NotFound);
  EXPECT_THROW(plan({"--limit", "13", "--dry-run"}), UsageError);
  EXPECT_THROW(plan({"--schedule", "1,2,3", "--dry-run"}), InvalidArgument);
}

}  // namespace
}  // namespace allot::app
