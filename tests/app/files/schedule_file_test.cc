#include "app/files/schedule_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "tests/app/files/example_schedule.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::Not;
using Json = nlohmann::ordered_json;

TEST(ScheduleFile, ReadsBackExactlyWhatWasWritten) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "new" / "schedule.json";
  write_schedule_file(path, example());
  EXPECT_EQ(read_schedule_file(path), example());

  ScheduleFile bare = example();
  bare.evaluation = {};
  bare.conditions.measured_on.reset();
  bare.conditions.attention = {.estimator = kernels::Estimator::kProp,
                               .prefill = kernels::Prefill::kSampled,
                               .tile = 64,
                               .score_stage = kernels::ScoreStage::kBernoulliStrat,
                               .score_budget = 48,
                               .mean_group_query = true};
  bare.floor = 0;
  bare.schedule.samples = {32, 0, 0, 0};
  write_schedule_file(path, bare);
  EXPECT_EQ(read_schedule_file(path), bare);
}

ScheduleFile with_bands() {
  ScheduleFile file = example();
  file.bands = {{.most_tokens = 1024, .schedule = {{8, 8, 8, 8}}},
                {.most_tokens = 4096, .schedule = {{20, 4, 4, 4}}}};
  return file;
}

TEST(ScheduleFile, BandsAreReadBackAndOnlyByWhoChoosesByLength) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "schedule.json";
  write_schedule_file(path, with_bands());
  EXPECT_EQ(read_schedule_file(path, Bands::kFollowed), with_bands());
  EXPECT_EQ(Json::parse(read_file(path))["schema_version"], 4);
  try {
    (void)read_schedule_file(path);
    ADD_FAILURE() << "bands were passed over";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), Names("3 lengths of prompts", "generate", "'r-1'"));
  }
  // Without bands the file is one of the version before, which older readers know.
  EXPECT_EQ(Json::parse(format_schedule_file(example()))["schema_version"], 2);
}

TEST(ScheduleFile, BandsThatAreNoneAreRefused) {
  const auto refusal_of = [](const std::string& pointer, const Json& value) {
    Json json = Json::parse(format_schedule_file(with_bands()));
    json[Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  EXPECT_THAT(refusal_of("/bands", Json::array()), Names("'bands'", "at least one"));
  EXPECT_THAT(refusal_of("/bands/1/most_tokens", 1024),
              Names("'bands[1].most_tokens' is 1024", "more than 1024"));
  EXPECT_THAT(refusal_of("/bands/0/samples", {8, 8, 8}), Names("'bands[0].samples' is 8,8,8"));
  EXPECT_THAT(refusal_of("/bands/0/samples", {8, 8, 8, "exact"}), Names("'bands[0].samples'", "exact"));
  EXPECT_THAT(refusal_of("/bands/0/samples", {8, 8, 8, 0}), Names("'bands[0].samples"));  // below the floor
  EXPECT_THAT(refusal_of("/start", {8, 8, 8, 8}), Names("'bands'", "'start'"));
  EXPECT_THAT(refusal_with("/bands", Json::parse(R"([{"most_tokens": 9, "samples": [8, 8, 8, 8]}])")),
              Names("'bands'"));  // version 2
}

TEST(ScheduleFile, SameContentGivesTheSameBytesWithFieldsInTheDocumentedOrder) {
  const std::string text = format_schedule_file(example());
  EXPECT_EQ(text, format_schedule_file(parse_schedule_file(text, "s.json")));
  std::vector<std::string> names;
  const Json json = Json::parse(text);
  for (const auto& [name, value] : json.items()) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("schema_version", "conditions", "samples", "total", "floor",
                                            "evaluation", "run_id", "policy_version", "tool_version"));
}

TEST(ScheduleFile, SaysTheScheduleThatLearningStartedFromWhereItWasNotTheEvenOne) {
  ScheduleFile file = example();
  file.start.samples = {14, 10, 6, 2};
  const std::string text = format_schedule_file(file);
  EXPECT_THAT(text, ::testing::HasSubstr("\"run_id\": \"r-1\",\n  \"start\": [14, 10, 6, 2],\n"));
  EXPECT_EQ(parse_schedule_file(text, "s.json"), file);
  for (const Json& wrong : {Json{14, 10, 6, 3}, Json{14, 10, 8}, Json{"exact", 20, 10, 2}}) {
    Json json = Json::parse(text);
    json["start"] = wrong;
    EXPECT_THAT(refusal(json), Names("start")) << wrong;
  }
}

TEST(ScheduleFile, TheStartOfAScheduleWithExactLayersHasTheSameOnes) {
  ScheduleFile file = example();
  file.schedule.samples = {kExactLayer, 20, kExactLayer, 12};
  file.start.samples = {kExactLayer, 16, kExactLayer, 16};
  const std::string text = format_schedule_file(file);
  EXPECT_THAT(text, ::testing::HasSubstr("\n  \"start\": [\"exact\", 16, \"exact\", 16],\n"));
  EXPECT_EQ(parse_schedule_file(text, "s.json"), file);
  for (const Json& wrong : {Json{"exact", 16, 8, 8}, Json{"exact", 16, 16, "exact"}, Json{8, 8, 8, 8}}) {
    Json json = Json::parse(text);
    json["start"] = wrong;
    EXPECT_THAT(refusal(json), Names("start", "exact,20,exact,12")) << wrong;
  }
}

TEST(ScheduleFile, SaysThatItsBudgetsAreRowsAndStaysInTheVersionThatItHad) {
  ScheduleFile file = example();
  EXPECT_THAT(format_schedule_file(file), ::testing::Not(::testing::HasSubstr("\"unit\"")));
  file.conditions.attention = {.estimator = kernels::Estimator::kJoint, .unit = kernels::BudgetUnit::kRows};
  const std::string text = format_schedule_file(file);
  EXPECT_THAT(text, ::testing::HasSubstr("\"estimator\": \"joint\",\n      \"unit\": \"rows\",\n"));
  EXPECT_EQ(Json::parse(text).at("schema_version"), 2);
  EXPECT_EQ(parse_schedule_file(text, "s.json"), file);
  file.conditions.attention.estimator = kernels::Estimator::kIid;
  EXPECT_THROW(format_schedule_file(file), InvalidArgument);
}

TEST(ScheduleFile, ExactLayersMakeItVersion3AndAreCountedInNoTotal) {
  ScheduleFile file = example();
  EXPECT_EQ(Json::parse(format_schedule_file(file)).at("schema_version"), 2);
  file.schedule.samples = {kExactLayer, 20, kExactLayer, 12};
  const std::string text = format_schedule_file(file);
  EXPECT_THAT(text, ::testing::HasSubstr("\n  \"samples\": [\"exact\", 20, \"exact\", 12],\n"));
  EXPECT_EQ(Json::parse(text).at("schema_version"), 3);
  EXPECT_EQ(parse_schedule_file(text, "s.json"), file);
}

TEST(ScheduleFile, ExactLayersInAFileOfVersion2AreRefusedWithTheVersionThatHasThem) {
  ScheduleFile file = example();
  file.schedule.samples = {kExactLayer, 20, kExactLayer, 12};
  Json json = Json::parse(format_schedule_file(file));
  json["schema_version"] = 2;
  EXPECT_THAT(refusal(json), Names("samples", "exact", "schema_version", 2, 3));
  for (const Json& entry : {Json("dense"), Json(-1), Json(nullptr), Json(Json::array())}) {
    json["schema_version"] = 3;
    json["samples"][0] = entry;
    EXPECT_THAT(refusal(json), Names("samples[0]", entry.dump(), "exact")) << entry;
  }
}

NamesMatcher names_missing(const std::string& parent, const std::string& field) {
  return Names(parent + field, "missing");
}

TEST(ScheduleFile, EveryFieldIsRequiredAndNamedWhenMissing) {
  for (const char* name : {"schema_version", "conditions", "samples", "total", "floor", "evaluation",
                           "run_id", "policy_version", "tool_version"}) {
    EXPECT_THAT(refusal_without("", name), names_missing("", name));
  }
  EXPECT_THAT(refusal_without("/conditions/model", "head_dim"),
              names_missing("conditions.model.", "head_dim"));
  for (const char* name : {"n", "correct", "interval_95"}) {
    EXPECT_THAT(refusal_without("/evaluation/dense", name), names_missing("evaluation.dense.", name));
  }
  for (const char* name : {"test", "only_learned", "only_uniform", "p_value", "difference", "interval_95"}) {
    EXPECT_THAT(refusal_without("/evaluation/paired", name), names_missing("evaluation.paired.", name));
  }
}

struct BadValue {
  const char* pointer;
  Json value;
  std::vector<std::string> named;
};

class BadValues : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadValues, AreRefusedWithFieldAndValue) {
  EXPECT_THAT(refusal_with(GetParam().pointer, GetParam().value), NamesAll(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(
    ScheduleFile, BadValues,
    ::testing::Values(
        BadValue{"/conditions/model", 7, {"conditions.model", "7", "object"}},
        BadValue{"/conditions/model/id", "", {"conditions.model.id", "\"\"", "empty"}},
        BadValue{"/conditions/model/config_sha256",
                 "abc",
                 {"conditions.model.config_sha256", "abc", "64", "lower-case"}},
        BadValue{"/conditions/model/weights_fingerprint",
                 nullptr,
                 {"conditions.model.weights_fingerprint", "null"}},
        BadValue{"/conditions/model/layers", 0, {"conditions.model.layers", "0", "1"}},
        BadValue{"/conditions/model/head_dim", 4294967296, {"conditions.model.head_dim", "4294967296"}},
        BadValue{"/conditions/attention/estimator", "santa", {"conditions.attention.estimator", "santa"}},
        BadValue{"/conditions/attention/prefill", "sparse", {"conditions.attention.prefill", "sparse"}},
        BadValue{"/conditions/attention/score_stage", "iid", {"conditions.attention.score_stage", "iid"}},
        BadValue{"/conditions/attention/tile", 0, {"conditions.attention.tile", "0"}},
        BadValue{
            "/conditions/attention/score_budget", 5, {"conditions.attention.score_budget", "5", "exact"}},
        BadValue{"/conditions/attention/mean_group_query", 1, {"conditions.attention.mean_group_query", "1"}},
        BadValue{"/samples", "20,7,3,2", {"samples", "20,7,3,2"}},
        BadValue{"/samples/2", 2.5, {"samples[2]", "2.5", "1"}},
        BadValue{"/samples/1", 0, {"samples[1]", "0", "1"}},
        BadValue{"/samples/0", -3, {"samples[0]", "-3", "1"}},
        BadValue{"/samples", {30, 1, 1}, {"samples", "3", "4", "layers"}},
        BadValue{"/samples", {20, 7, 3, 3}, {"samples", "33", "total", "32"}},
        BadValue{"/total", 31, {"samples", "32", "total", "31"}},
        BadValue{"/total", std::numeric_limits<uint64_t>::max(), {"total", "18446744073709551615"}},
        BadValue{"/floor", -1, {"floor", "-1", "0"}},
        BadValue{"/conditions/task/version", "2", {"conditions.task.version", "\"2\"", "1"}},
        BadValue{"/conditions/measured_on/sha256", "", {"conditions.measured_on.sha256", "\"\""}},
        BadValue{"/evaluation", Json::array(), {"evaluation", "[]", "object"}},
        BadValue{"/evaluation/uniform/n", 0, {"evaluation.uniform.n", "0", "1"}},
        BadValue{"/evaluation/uniform/correct", 201, {"evaluation.uniform.correct", "201", "0", "200"}},
        BadValue{"/evaluation/uniform/interval_95", {0.2}, {"evaluation.uniform.interval_95", "[0.2]"}},
        BadValue{"/evaluation/uniform/interval_95", {0.2, 0.1}, {"evaluation.uniform.interval_95", "lower"}},
        BadValue{"/evaluation/uniform/interval_95", {0.2, 0.3}, {"evaluation.uniform.interval_95", "0.14"}},
        BadValue{"/evaluation/uniform/interval_95",
                 {-0.1, 0.3},
                 {"evaluation.uniform.interval_95", "-0.1", "0", "1"}},
        BadValue{"/evaluation/paired/test", "t-test", {"evaluation.paired.test", "t-test", "mcnemar-exact"}},
        BadValue{"/evaluation/paired/p_value", 1.5, {"evaluation.paired.p_value", "1.5"}},
        BadValue{"/evaluation/paired/only_uniform", 3, {"evaluation.paired", "164", "3", "162"}},
        BadValue{"/evaluation/paired/difference", 0.8, {"evaluation.paired.difference", "0.8"}},
        BadValue{"/run_id", 12, {"run_id", "12"}}, BadValue{"/policy_version", -1, {"policy_version", "-1"}},
        BadValue{"/sampels", {1}, {"sampels", "field"}},
        BadValue{"/conditions/model/weights", "x", {"conditions.model.weights", "field"}}));

TEST(ScheduleFile, AllFaultsAreReportedAtOnce) {
  Json json = Json::parse(format_schedule_file(example()));
  json["total"] = "many";
  json["conditions"]["model"]["layers"] = -1;
  json.erase("run_id");
  EXPECT_THAT(refusal(json), Names("total", "many", "conditions.model.layers", -1, "run_id", "missing"));
}

TEST(ScheduleFile, PairedTestNeedsBothScores) {
  EXPECT_THAT(refusal_without("/evaluation", "uniform"),
              Names("evaluation.paired", "evaluation.uniform", "evaluation.learned"));
}

TEST(ScheduleFile, FieldThatIsThereTwiceIsRefused) {
  std::string text = format_schedule_file(example());
  text.replace(text.find("\"floor\": 1"), 10, "\"floor\": 0,\n  \"floor\": 1");
  EXPECT_THROW(
      {
        try {
          (void)parse_schedule_file(text, "s.json");
        } catch (const CorruptFile& error) {
          EXPECT_THAT(error.what(), Names("s.json", "floor", "twice"));
          throw;
        }
      },
      CorruptFile);
}

TEST(ScheduleFile, TextThatIsNoJsonIsRefusedWithItsByte) {
  const std::string text = format_schedule_file(example());
  const std::string cut = text.substr(0, 100);
  try {
    (void)parse_schedule_file(cut, "s.json");
    FAIL() << "a cut file was read";
  } catch (const CorruptFile& error) {
    EXPECT_THAT(error.what(), Names("s.json", 101, "JSON"));
  }
  EXPECT_THROW((void)parse_schedule_file("[1, 2]", "s.json"), CorruptFile);
  EXPECT_THROW((void)parse_schedule_file("", "s.json"), CorruptFile);
}

TEST(ScheduleFile, AnotherSchemaVersionIsUnsupportedWhateverElseTheFileHolds) {
  for (const Json& version : {Json(5), Json(0), Json(-1), Json(2.5), Json("3"), Json(uint64_t{1} << 40)}) {
    try {
      (void)parse_schedule_file(Json{{"schema_version", version}, {"layers", Json::array()}}.dump(),
                                "s.json");
      ADD_FAILURE() << "schema version " << version << " was read";
    } catch (const Unsupported& error) {
      EXPECT_THAT(error.what(), Names("s.json", "schema_version", version.dump(), 1, 4));
    }
  }
}

// Written by the release before, which knew nothing of version 2.
std::filesystem::path version_1() {
  return std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/schedule/version_1.json";
}

TEST(ScheduleFile, Version1IsReadAndWhatItDoesNotSayIsUnknown) {
  const ScheduleFile file = read_schedule_file(version_1());
  EXPECT_EQ(file.conditions.model.id, "tiny-gsm");
  EXPECT_EQ(file.conditions.model.layers, 8);
  EXPECT_EQ(file.conditions.task,
            (evaluation::TaskIdentity{.name = "gsm8k", .version = 1, .prompt_style = "plain"}));
  EXPECT_EQ(file.conditions.attention, kernels::AttentionMethod{});
  EXPECT_TRUE(file.conditions.learned_on->sha256.starts_with("116f54c4"));
  EXPECT_TRUE(file.conditions.measured_on->sha256.starts_with("df16c1c5"));
  EXPECT_EQ(file.conditions.measured_on->questions, 200);
  EXPECT_EQ(file.schedule.samples, (std::vector<int32_t>{38, 7, 2, 2, 6, 2, 2, 5}));
  EXPECT_EQ(file.evaluation.learned->correct, 195);
  EXPECT_THAT(file.conditions.unknown,
              ::testing::UnorderedElementsAre("model.tokenizer_sha256", "learned_on.questions",
                                              "generation.dtype", "generation.temperature",
                                              "generation.top_p", "generation.repetition_penalty",
                                              "generation.max_new_tokens", "generation.stop", "seed"));
}

TEST(ScheduleFile, Version1WrittenAnewSaysNullWhereItDoesNotKnow) {
  const ScheduleFile file = read_schedule_file(version_1());
  const std::string text = format_schedule_file(file);
  const Json json = Json::parse(text);
  EXPECT_EQ(json.at("schema_version"), 2);
  EXPECT_TRUE(json.at("conditions").at("generation").at("temperature").is_null());
  EXPECT_EQ(json.at("conditions").at("attention").at("tile"), 256);
  EXPECT_EQ(parse_schedule_file(text, "s.json"), file);
}

TEST(ScheduleFile, Version1IsCheckedAsBefore) {
  const Json good = Json::parse(read_file(version_1()));
  for (const auto& [parent, field] : {std::pair("", "model"),
                                      {"", "task"},
                                      {"", "attention"},
                                      {"/model", "layers"},
                                      {"/task", "train_sha256"},
                                      {"/attention", "tile"}}) {
    Json json = good;
    json[Json::json_pointer(parent)].erase(field);
    const std::string path(*parent == '\0' ? "" : std::string(parent + 1) + ".");
    EXPECT_THAT(refusal(json), names_missing(path, field));
  }
  Json json = good;
  json["task"]["colour"] = "red";
  EXPECT_THAT(refusal(json), Names("task.colour", "field"));
  json = good;
  json["conditions"] = Json::object();
  EXPECT_THAT(refusal(json), Names("conditions", "field"));
  json = good;
  json["model"]["layers"] = 7;
  EXPECT_THAT(refusal(json), Names("samples", 8, 7, "layers"));
}

TEST(ScheduleFile, ExampleInTheDocumentationIsReadAndHasTheBytesThatAreWritten) {
  const std::string page = read_file(std::filesystem::path(ALLOT_SOURCE_DIR) / "docs" / "schedule-format.md");
  const std::string fence = "```json\n";
  const size_t start = page.find(fence) + fence.size();
  const std::string text = page.substr(start, page.find("```", start) - start);
  EXPECT_EQ(format_schedule_file(parse_schedule_file(text, "docs/schedule-format.md")), text);
}

TEST(ScheduleFile, MissingFileIsNamed) {
  const TemporaryDirectory directory;
  EXPECT_THROW((void)read_schedule_file(directory.path() / "absent.json"), NotFound);
}

TEST(ScheduleFile, ContentThatCouldNotBeReadBackIsNotWritten) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "unwritten.json";
  ScheduleFile file = example();
  file.total = 33;
  EXPECT_THROW(write_schedule_file(path, file), InvalidArgument);
  file = example();
  file.evaluation.paired->p_value = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(write_schedule_file(path, file), InvalidArgument);
  file = example();
  file.run_id = "\xff";
  EXPECT_THROW(write_schedule_file(path, file), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScheduleFile, MatchingModelPassesWhateverItsNameAndTokenizer) {
  model::ModelIdentity model = example().conditions.model;
  model.id = "copy-of-tiny";
  model.tokenizer_sha256 = std::string(64, 'e');
  EXPECT_NO_THROW(check_matches(example(), model));
}

TEST(ScheduleFile, AModelWithAnAdapterIsNotTheModelWithoutIt) {
  ScheduleFile file = example();
  model::ModelIdentity model = file.conditions.model;
  model.adapter = {.id = "lora", .fingerprint = std::string(64, '7')};
  const auto mismatch = [&] {
    try {
      check_matches(file, model);
    } catch (const Mismatch& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(mismatch(), Names("adapter", "null", "lora", std::string(64, '7')));
  file.conditions.model.adapter = {.id = "copy", .fingerprint = std::string(64, '7')};
  EXPECT_EQ(mismatch(), "");
  EXPECT_EQ(parse_schedule_file(format_schedule_file(file), "file"), file);
  model.adapter->fingerprint = std::string(64, '8');
  EXPECT_THAT(mismatch(), Names("adapter.fingerprint", std::string(64, '7'), std::string(64, '8')));
}

TEST(ScheduleFile, OtherModelIsRefusedNamingBothInEveryFieldThatDiffers) {
  model::ModelIdentity model = example().conditions.model;
  model.id = "llama-8b";
  model.layers = 32;
  model.num_q_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  model.config_sha256 = std::string(64, '1');
  model.weights_fingerprint = std::string(64, '2');
  try {
    check_matches(example(), model);
    FAIL() << "another model was accepted";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), Names("tiny-gsm", "llama-8b", "layers", 4, 32, "num_q_heads", 8, 32,
                                    "num_kv_heads", 4, 8, "head_dim", 32, 128, kConfigHash,
                                    std::string(64, '1'), kWeights, std::string(64, '2')));
  }
  model = example().conditions.model;
  model.weights_fingerprint = std::string(64, '2');
  try {
    check_matches(example(), model);
    FAIL() << "other weights were accepted";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), AllOf(Names("weights_fingerprint"), Not(Names("config_sha256"))));
  }
}

}  // namespace
}  // namespace allot::app
