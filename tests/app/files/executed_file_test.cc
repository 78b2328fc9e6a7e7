#include "app/files/executed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/cli/command.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "episode/samples.h"
#include "tests/app/report/example_run.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using kernels::Estimator;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three layers of 2 KV heads with 2 query heads each: samples 4, exact, 6 of `joint`, prompts exact.
class Executed : public ::testing::Test {
 protected:
  Executed() {
    schedule_ = schedule_file_of(example_run(), "0.1.0");
    schedule_.costs.reset();
    schedule_.start = {};
    schedule_.evaluation = {};
    schedule_.schedule.samples = {4, kExactLayer, 6};
    schedule_.total = 10;
    evaluation::Conditions& conditions = schedule_.conditions;
    conditions.model.layers = 3;
    conditions.model.num_q_heads = 4;
    conditions.model.num_kv_heads = 2;
    conditions.attention = {.estimator = Estimator::kJoint, .prefill = kernels::Prefill::kDense};
    // 30 sampled tokens, each reading 8 and 12 rows of a KV head.
    executed_ = {
        .engine = "allot_vllm",
        .engine_version = "0.1.0",
        .computed_by = "operators",
        .conditions = conditions,
        .run_id = schedule_.run_id,
        .schedule = schedule_.schedule,
        .layers = {{.sampled_tokens = 30, .exact_tokens = 50, .samples = 120, .rows = 480, .row_limit = 480},
                   {.sampled_tokens = 0, .exact_tokens = 80, .rows = 0},
                   {.sampled_tokens = 30, .exact_tokens = 3, .samples = 180, .rows = 700, .row_limit = 720}}};
  }

  // All faults, of all layers.
  std::vector<std::string> faults() const {
    std::vector<std::string> found;
    for (const auto& layer : judge(executed_, schedule_).layers)
      found.insert(found.end(), layer.faults.begin(), layer.faults.end());
    return found;
  }

  ScheduleFile schedule_;
  ExecutedFile executed_;
};

TEST_F(Executed, WhatWasAskedIsAsAsked) {
  const ExecutedVerdict verdict = judge(executed_, schedule_);
  EXPECT_THAT(faults(), IsEmpty());
  EXPECT_TRUE(verdict.as_asked()) << evaluation::describe(verdict.differences);
  EXPECT_THAT(verdict.unknown, IsEmpty());
  EXPECT_THAT(describe(verdict, executed_), Names("allot_vllm", "joint", "8.00", "11.67", "as asked"));
}

TEST_F(Executed, OtherSamplesThanAskedAreNamedWithTheirLayer) {
  executed_.layers[2].samples = 240;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 2", "8.0", "samples", 6)));
  EXPECT_FALSE(judge(executed_, schedule_).as_asked());
  schedule_.conditions.attention.unit = executed_.conditions.attention.unit = kernels::BudgetUnit::kRows;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 2", "8.0", "rows", 6)));
}

TEST_F(Executed, OneTokenWithOtherSamplesIsEnough) {
  executed_.layers[0].samples = 119;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0")));
}

TEST_F(Executed, FewerRowsThanJointReadsOrMoreThanPossibleDiffer) {
  executed_.layers[0].rows = 440;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", "7.33", "7.60")));
  executed_.layers[0].rows = 500;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", "8.33", "8.00")));
}

TEST_F(Executed, EstimatorsWhoseHeadsChooseAloneMayReadFewerRowsButSome) {
  schedule_.conditions.attention.estimator = executed_.conditions.attention.estimator = Estimator::kSys;
  executed_.layers[0].rows = 60;
  EXPECT_THAT(faults(), IsEmpty());
  executed_.layers[0].rows = 59;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", "0.98", "1.00")));
}

TEST_F(Executed, ALayerThatSampledNothingOrInPlaceOfExactAttentionDiffers) {
  executed_.layers[0] = {.exact_tokens = 80};
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", "no token", 80, "4 samples a head")));
  executed_.layers[1] = {.sampled_tokens = 30, .exact_tokens = 50, .samples = 60};
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0"), Names("layer 1", 30, "2.0", "exact")));
}

TEST_F(Executed, ExactTokensOfPromptsThatAreToBeSampledDiffer) {
  schedule_.conditions.attention.prefill = executed_.conditions.attention.prefill =
      kernels::Prefill::kSampled;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", "50 of 80"), Names("layer 2", "3 of 33")));
}

TEST_F(Executed, ALayerThatLeftOutTokensDiffersUnlessItIsTheLast) {
  executed_.layers[1].exact_tokens = 79;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 1", 79, 80)));
  executed_.layers[1].exact_tokens = 80;
  executed_.layers[2].exact_tokens = 51;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 2", 81, 80)));
}

TEST_F(Executed, AnotherModelMethodOrScheduleDiffers) {
  executed_.conditions.model.weights_fingerprint = std::string(64, '9');
  executed_.conditions.attention.tile = 17;
  executed_.conditions.seed += 1;
  executed_.conditions.model.id = "elsewhere";
  const ExecutedVerdict verdict = judge(executed_, schedule_);
  ASSERT_EQ(verdict.differences.size(), 2u) << evaluation::describe(verdict.differences);
  EXPECT_EQ(verdict.differences[0].field, "model.weights_fingerprint");
  EXPECT_EQ(verdict.differences[1].field, "attention.tile");
  EXPECT_FALSE(verdict.as_asked());
  executed_.schedule.samples[0] = 5;
  EXPECT_THAT(faults(), ElementsAre(Names("layer 0", 5, 4)));
}

TEST_F(Executed, AnotherNumberOfLayersDiffers) {
  executed_.layers.pop_back();
  executed_.schedule.samples.pop_back();
  EXPECT_THAT(faults(), ElementsAre(Names("layer 2", "not in the file")));
  schedule_.schedule.samples.pop_back();
  schedule_.schedule.samples.pop_back();
  EXPECT_THAT(faults(), ElementsAre(Names("layer 1", "not in the schedule")));
}

TEST_F(Executed, WhatIsNotKnownIsSaidAndIsNoDifference) {
  executed_.conditions.unknown = {"model.config_sha256", "model.tokenizer_sha256", "task.name",
                                  "generation.dtype"};
  executed_.layers[0].rows.reset();
  const ExecutedVerdict verdict = judge(executed_, schedule_);
  EXPECT_TRUE(verdict.as_asked());
  EXPECT_THAT(verdict.unknown, ElementsAre(Names("not counted"), Names("model.config_sha256")));
}

TEST_F(Executed, TheFileIsReadBackAsItWasWritten) {
  executed_.conditions.unknown = {"model.config_sha256"};
  executed_.layers[2].rows.reset();
  EXPECT_EQ(parse_executed_file(format_executed_file(executed_), "e.json"), executed_);
  executed_.run_id.clear();
  EXPECT_EQ(parse_executed_file(format_executed_file(executed_), "e.json"), executed_);
}

TEST_F(Executed, ADamagedFileIsRefusedNamingEveryFault) {
  auto json = nlohmann::ordered_json::parse(format_executed_file(executed_));
  const auto fault = [&] {
    try {
      (void)parse_executed_file(json.dump(), "e.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(fault(), "");
  json["layers"][1]["layer"] = 4;
  json["layers"][2]["rows"] = -1;
  json["engine"].erase("version");
  EXPECT_THAT(fault(), Names("e.json", "layers[1].layer", 4, "layers[2].rows", -1, "engine.version"));
  json["layers"] = {1};
  EXPECT_THAT(fault(), Names("layers", 1, 3));
  json["schema_version"] = 2;
  EXPECT_THAT(fault(), Names("e.json", "schema_version", 2));
  EXPECT_THROW((void)parse_executed_file("[]", "e.json"), CorruptFile);
}

// The command, with the files in a directory.
class VerifyExecuted : public Executed {
 protected:
  int verify(std::vector<std::string> more) {
    write_file_atomically(directory_.path() / "executed.json", format_executed_file(executed_));
    write_schedule_file(directory_.path() / "schedule.json", schedule_);
    std::vector<std::string> words = {"--executed", directory_.path() / "executed.json"};
    words.insert(words.end(), more.begin(), more.end());
    ::testing::internal::CaptureStdout();
    try {
      const int code = run_verify_executed(words);
      out_ = ::testing::internal::GetCapturedStdout();
      return code;
    } catch (const Error& error) {
      ::testing::internal::GetCapturedStdout();
      out_ = error.what();
      return error.exit_code();
    }
  }

  const TemporaryDirectory directory_;
  std::string out_;
};

TEST_F(VerifyExecuted, EndsWith0Or3AndSaysWhatDiffers) {
  const std::string schedule = directory_.path() / "schedule.json";
  EXPECT_EQ(verify({"--schedule", schedule}), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("executed as asked\n"));
  EXPECT_EQ(verify({"--run", directory_.path()}), 0) << out_;
  executed_.layers[2].samples = 240;
  EXPECT_EQ(verify({"--schedule", schedule}), 3);
  EXPECT_THAT(out_, Names("differs", "layer 2", "8.0", "samples", 6));
  EXPECT_EQ(verify({"--schedule", schedule, "--json"}), 3);
  const auto json = nlohmann::ordered_json::parse(out_);
  EXPECT_EQ(json.at("as_asked"), false);
  EXPECT_THAT(json.at("faults").get<std::vector<std::string>>(),
              ElementsAre(Names("layer 2", "8.0", "samples", 6)));
  EXPECT_EQ(json.at("layers").at(2).at("executed"), 8);
}

TEST_F(VerifyExecuted, OfAMergedAdapterItSaysWithWhatToCompare) {
  const std::string schedule = directory_.path() / "schedule.json";
  schedule_.conditions.model.adapter =
      model::AdapterIdentity{.id = "words", .fingerprint = std::string(64, '0')};
  EXPECT_EQ(verify({"--schedule", schedule}), 3);
  EXPECT_THAT(out_, Names("model.adapter", "words", "merged", "exported directory"));
  executed_.conditions.model.adapter =
      model::AdapterIdentity{.id = "words", .fingerprint = std::string(64, '1')};
  EXPECT_EQ(verify({"--schedule", schedule}), 3);
  EXPECT_THAT(out_, ::testing::Not(HasSubstr("merged")));
}

TEST_F(VerifyExecuted, NeedsOneScheduleToCompareWith) {
  EXPECT_EQ(verify({}), 2);
  EXPECT_THAT(out_, Names("--schedule", "--run"));
  EXPECT_EQ(verify({"--schedule", "a", "--run", "b"}), 2);
}

}  // namespace
}  // namespace allot::app
