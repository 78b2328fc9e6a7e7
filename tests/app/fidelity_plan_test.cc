// What `allot analyze fidelity` is about to do, without a model.
#include "app/scoring/fidelity_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class FidelityPlanTest : public ::testing::Test {
 protected:
  FidelityPlan plan_of(const Words& more) {
    Words words = {"--model", small_.model.string()};
    words.insert(words.end(), more.begin(), more.end());
    FidelityPlanOptions options;
    OptionSet set("analyze", "summary", "example");
    declare_fidelity_options(&set, &options);
    FidelityPlan made;
    set.resolve_with([&] { made = plan_fidelity(&options, &set); });
    EXPECT_EQ(set.parse(words), OptionSet::Parsed::kRun);
    return made;
  }
  FidelityPlan of_questions(const Words& more = {}) {
    Words words = {"--data", small_.heldout.string()};
    words.insert(words.end(), more.begin(), more.end());
    return plan_of(words);
  }
  // A text file of `count` words, of which the tokenizer knows three: ids 1, 2, 3, 1, ….
  std::string text_file(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += std::string(i == 0 ? "" : " ") + kWords[i % 3];
    write_file_atomically(directory_ / "text", text);
    return (directory_ / "text").string();
  }
  template <class Error>
  std::string refusal(const Words& words) {
    return message_of<Error>([&] { plan_of(words); });
  }

  static constexpr const char* kWords[] = {"one", "two", "three"};
  std::filesystem::path directory_ = fresh_directory();
  SmallModel small_ = write_small_model(directory_);
};

// "What is 100 plus one?" has 5 words, "It is more. #### 100" has 5.
TEST_F(FidelityPlanTest, AQuestionIsThePromptOfItsSolution) {
  const FidelityPlan plan = of_questions();
  ASSERT_THAT(plan.texts, SizeIs(12));
  EXPECT_THAT(plan.texts[0].ids, SizeIs(10));
  EXPECT_EQ(plan.texts[0].prompt_tokens, 5);
  EXPECT_EQ(plan.texts[11].question, 11u);
  const Json conditions = evaluation::to_json(plan.conditions);
  EXPECT_EQ(conditions["task"]["name"], "gsm8k");
  EXPECT_EQ(conditions["task"]["prompt_style"], "plain");
  EXPECT_EQ(conditions["measured_on"]["questions"], 12);
  EXPECT_EQ(conditions["measured_on"]["sha256"], sha256_hex(read_file(small_.heldout)));
  EXPECT_EQ(conditions["generation"]["dtype"], "bfloat16");
  EXPECT_TRUE(conditions["generation"]["temperature"].is_null()) << "nothing is generated";
  EXPECT_EQ(plan.options.prompt_style, "plain");
}

TEST_F(FidelityPlanTest, KeysOfTheCacheAreConditions) {
  const FidelityPlan usual = of_questions(), split = of_questions({"--keys", "split", "--device", "cuda"});
  EXPECT_EQ(usual.conditions.generation.keys, kernels::KeyFormat::kSixteenBits);
  EXPECT_EQ(evaluation::to_json(split.conditions)["generation"]["keys"], "split");
  EXPECT_THAT(describe(split), Names("keys split"));
  EXPECT_EQ(describe(usual).find("keys"), std::string::npos);
}

TEST_F(FidelityPlanTest, WeightsAreConditionsThatTheDeviceHasToHave) {
  const FidelityPlan fp8 = of_questions({"--weights", "fp8", "--device", "cuda"});
  EXPECT_EQ(evaluation::to_json(fp8.conditions)["generation"]["weights"], "fp8");
  EXPECT_EQ(fp8.conditions.generation.weights, model::WeightStorage::kFp8);
  EXPECT_THAT(describe(fp8), Names("weights fp8"));
  const Words questions = {"--data", small_.heldout.string(), "--weights", "fp8"};
  EXPECT_THAT(refusal<Unsupported>(questions), Names("weights", "fp8", "cpu", "dtype"));
}

TEST_F(FidelityPlanTest, CachesAreSimulatedInTheOrderGivenOnTheCpu) {
  const FidelityPlan plan = of_questions({"--simulate-cache", "fp8/fp8-scaled,bfloat16,dtype/int8"});
  using kernels::CacheFormat;
  EXPECT_THAT(plan.simulated_caches,
              ElementsAre(kernels::CacheFormats{CacheFormat::kFp8, CacheFormat::kFp8Scaled},
                          kernels::CacheFormats{CacheFormat::kBFloat16, CacheFormat::kDtype},
                          kernels::CacheFormats{CacheFormat::kDtype, CacheFormat::kInt8}));
  EXPECT_THAT(plan.cases, SizeIs(8)) << "once more under each, by who measures";
  EXPECT_EQ(plan.conditions.generation.keys, kernels::KeyFormat::kSixteenBits);
  EXPECT_THAT(of_questions().simulated_caches, SizeIs(0));
  const Words questions = {"--data", small_.heldout.string(), "--simulate-cache"};
  const auto with = [&](const Words& more) {
    Words words = questions;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  EXPECT_THAT(refusal<InvalidArgument>(with({"fp4"})), Names("fp4", "fp8", "int8"));
  EXPECT_THAT(refusal<InvalidArgument>(with({"fp8,"})), Names("fp8", "int8"));
  EXPECT_THAT(refusal<UsageError>(with({"fp8,dtype/dtype"})), Names("--simulate-cache", "dtype/dtype"));
  EXPECT_THAT(refusal<Unsupported>(with({"fp8", "--device", "cuda"})), Names("fp8/dtype", "cuda:0", "cpu"));
}

TEST_F(FidelityPlanTest, AStyleOfTheModelsOwnTemplateMakesItsMessageOfTheQuestion) {
  const Words chat = {"--data", small_.heldout.string(), "--prompt-style", "chat"};
  EXPECT_THAT(refusal<Unsupported>(chat), Names("chat_template.jinja", "plain"));
  write_file_atomically(
      small_.model / "chat_template.jinja",
      "one {{ messages|map(attribute='role')|join }} {{ messages[0].content.split('\n')[0] }} two");
  const FidelityPlan plan = plan_of(chat);
  EXPECT_EQ(plan.texts[0].prompt_tokens, 8) << "one user, the question's 5 words, two";
  EXPECT_EQ(plan.texts[0].ids[0], 1);
  EXPECT_EQ(plan.texts[0].ids[7], 2);
  EXPECT_EQ(plan.conditions.task.prompt_style, "chat");
  EXPECT_EQ(of_questions().options.prompt_style, "chat")
      << "what auto takes of a template of no known family";
}

TEST_F(FidelityPlanTest, LongTextsAreCutAndOnlyTheFirstOnesAreMeasured) {
  const FidelityPlan cut = of_questions({"--tokens", "7", "--limit", "3"});
  ASSERT_THAT(cut.texts, SizeIs(3));
  EXPECT_THAT(cut.texts[2].ids, SizeIs(7));
  EXPECT_EQ(cut.texts[2].prompt_tokens, 5);
  EXPECT_EQ(cut.conditions.measured_on->questions, 3);
  EXPECT_EQ(of_questions({"--tokens", "4"}).texts[0].prompt_tokens, 4);
}

TEST_F(FidelityPlanTest, APromptThatItsTaskCutsIsMeasuredAsItIsAsked) {
  // "What is 100 plus one?" has 5 words, which the model has 512 positions for.
  const auto prompt_tokens = [&](const std::string& truncate, const std::string& new_tokens) {
    const std::filesystem::path task = directory_ / "task.json";
    write_file_atomically(
        task, R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question} {question}",
                                    "grade": {"by": "exact"}, )" +
                  truncate + R"("generation": {"max_new_tokens": )" + new_tokens + "}}");
    return of_questions({"--task", task.string()}).texts[0].prompt_tokens;
  };
  EXPECT_EQ(prompt_tokens("", "500"), 10);
  EXPECT_EQ(prompt_tokens(R"("truncate": {"at": "middle"}, )", "502"), 10);
  EXPECT_EQ(prompt_tokens(R"("truncate": {"at": "middle"}, )", "504"), 8);
}

TEST_F(FidelityPlanTest, ATextFileIsCutIntoPieces) {
  const FidelityPlan plan =
      plan_of({"--text", text_file(11), "--tokens", "4", "--mode", "decode", "--prompt-tokens", "3"});
  ASSERT_THAT(plan.texts, SizeIs(2));
  EXPECT_THAT(plan.texts[0].ids, ElementsAre(1, 2, 3, 1));
  EXPECT_THAT(plan.texts[1].ids, ElementsAre(2, 3, 1, 2));
  EXPECT_EQ(plan.texts[1].prompt_tokens, 3);
  EXPECT_EQ(plan.texts[1].question, 1u);
  const Json conditions = evaluation::to_json(plan.conditions);
  EXPECT_TRUE(conditions["task"]["name"].is_null());
  EXPECT_EQ(conditions["measured_on"]["questions"], 2);
  EXPECT_EQ(conditions["attention"]["prefill"], "dense");
  EXPECT_EQ(plan_of({"--text", text_file(11)}).texts.at(0).prompt_tokens, 1);
  EXPECT_THAT(plan_of({"--text", text_file(11)}).texts.at(0).ids, SizeIs(11)) << "shorter than a piece";
  EXPECT_THAT(plan_of({"--text", text_file(1030)}).texts, SizeIs(2)) << "of 512 tokens";
}

TEST_F(FidelityPlanTest, EveryEstimatorIsMeasuredUnderEverySchedule) {
  const FidelityPlan plan =
      of_questions({"--estimator", "threshold,sys", "--samples", "4,9", "--schedule", "1,2,3,4,5,6,7,8",
                    "--score-stage", "bernoulli", "--score-budget", "16"});
  ASSERT_THAT(plan.cases, SizeIs(6));
  EXPECT_EQ(plan.cases[0].method.estimator, kernels::Estimator::kThreshold);
  EXPECT_EQ(plan.cases[0].method.prefill, kernels::Prefill::kSampled);
  EXPECT_EQ(plan.cases[0].method.score_budget, 16);
  EXPECT_EQ(plan.cases[0].schedule.label, "uniform:4");
  EXPECT_THAT(plan.cases[1].schedule.schedule->samples, ElementsAre(9, 9, 9, 9, 9, 9, 9, 9));
  EXPECT_THAT(plan.cases[2].schedule.schedule->samples, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(plan.cases[5].method.estimator, kernels::Estimator::kSys);
  EXPECT_EQ(plan.cases[5].schedule.label, "1,2,3,4,5,6,7,8");
}

TEST_F(FidelityPlanTest, WithoutSchedulesFourBudgetsAreMeasured) {
  const FidelityPlan plan = of_questions();
  ASSERT_THAT(plan.cases, SizeIs(8));
  EXPECT_EQ(plan.cases[3].schedule.label, "uniform:32");
  EXPECT_EQ(plan.options.samples, "4,8,16,32");
  EXPECT_THAT(of_questions({"--schedule", "uniform:3"}).cases, SizeIs(2)) << "with one, only that";
}

TEST_F(FidelityPlanTest, BudgetsMayBeRowsOfEstimatorsWhoseHeadsChooseTogether) {
  const FidelityPlan plan = of_questions({"--estimator", "joint,level", "--samples", "3", "--unit", "rows"});
  ASSERT_THAT(plan.cases, SizeIs(2));
  EXPECT_EQ(plan.cases[1].method.unit, kernels::BudgetUnit::kRows);
  EXPECT_THAT(describe(plan), Names("rows", "of its 2 query heads"));
  EXPECT_THAT(
      refusal<UsageError>({"--data", small_.heldout.string(), "--estimator", "joint,sys", "--unit", "rows"}),
      Names("--unit", "rows", "sys", "joint", "level"));
}

TEST_F(FidelityPlanTest, SaysWhatTheNumbersRestOn) {
  EXPECT_THAT(describe(of_questions({"--mode", "decode", "--seed", "9"})),
              Names(12, small_.heldout, "gsm8k", "plain", "bfloat16", "decode", "exact", 9, "cpu"));
  const std::string text = text_file(5);
  EXPECT_THAT(describe(plan_of({"--text", text, "--dtype", "float32"})),
              Names(1, text, "float32", "prefill"));
}

TEST_F(FidelityPlanTest, RefusesOptionsThatDoNotFit) {
  const std::string data = small_.heldout.string(), text = text_file(5);
  EXPECT_THAT(refusal<UsageError>({}), Names("--text", "--data"));
  EXPECT_THAT(refusal<UsageError>({"--text", text, "--data", data}), Names("--text", "--data"));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--prompt-tokens", "3"}), Names("--prompt-tokens"));
  EXPECT_THAT(refusal<UsageError>({"--text", text, "--prompt-tokens", "6"}), Names("--prompt-tokens", 6, 5));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--limit", "13"}), Names("--limit", 13, 12));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--samples", "4,,8"}), Names("--samples"));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--samples", "4,-8"}), Names("--samples", "-8"));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--schedule", "dense"}), Names("--schedule dense"));
  EXPECT_THAT(refusal<InvalidArgument>({"--data", data, "--estimator", "sys,systematic"}),
              Names("systematic", "sys", "threshold"));
  EXPECT_THAT(refusal<UsageError>({"--data", data, "--score-stage", "bernoulli"}),
              Names("--score-stage", "bernoulli", "--score-budget", 0));
  write_file_atomically(directory_ / "empty", "");
  EXPECT_THAT(refusal<UsageError>({"--text", (directory_ / "empty").string()}), Names("no tokens"));
}

}  // namespace
}  // namespace allot::app
