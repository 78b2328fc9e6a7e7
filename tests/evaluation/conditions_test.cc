#include "evaluation/conditions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/json.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

Conditions example_conditions() {
  Conditions conditions;
  conditions.model = {.id = "tiny",
                      .config_sha256 = std::string(64, 'a'),
                      .tokenizer_sha256 = std::string(64, 'b'),
                      .weights_fingerprint = std::string(64, 'c'),
                      .layers = 4,
                      .num_q_heads = 8,
                      .num_kv_heads = 2,
                      .head_dim = 32};
  conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "boxed"};
  conditions.learned_on = {.sha256 = std::string(64, 'd'), .questions = 2000};
  conditions.measured_on = {.sha256 = std::string(64, 'e'), .questions = 512};
  conditions.attention = {.estimator = kernels::Estimator::kProp,
                          .prefill = kernels::Prefill::kDense,
                          .tile = 64,
                          .score_stage = kernels::ScoreStage::kBernoulli,
                          .score_budget = 8,
                          .mean_group_query = true};
  conditions.generation = {.dtype = kernels::DType::kFloat32,
                           .temperature = 0.6,
                           .top_p = 0.95,
                           .repetition_penalty = 1.1,
                           .max_new_tokens = 4096,
                           .stop = StopRule::kAnswer};
  conditions.seed = 3;
  return conditions;
}

// Another value that each field may have.
const std::map<std::string, Json>& other_values() {
  static const std::map<std::string, Json> values = {
      {"model.id", "small"},
      {"model.config_sha256", std::string(64, '1')},
      {"model.tokenizer_sha256", std::string(64, '1')},
      {"model.weights_fingerprint", std::string(64, '1')},
      {"model.layers", 5},
      {"model.num_q_heads", 9},
      {"model.num_kv_heads", 9},
      {"model.head_dim", 64},
      {"task.name", "mmlu"},
      {"task.version", 2},
      {"task.prompt_style", "plain"},
      {"learned_on.sha256", std::string(64, '1')},
      {"learned_on.questions", 7},
      {"measured_on.sha256", std::string(64, '1')},
      {"measured_on.questions", 7},
      {"attention.estimator", "sys"},
      {"attention.prefill", "sampled"},
      {"attention.tile", 128},
      {"attention.score_stage", "bernoulli-strat"},
      {"attention.score_budget", 9},
      {"attention.mean_group_query", false},
      {"generation.dtype", "bfloat16"},
      {"generation.temperature", 0.5},
      {"generation.top_p", 0.5},
      {"generation.repetition_penalty", 1.5},
      {"generation.max_new_tokens", 7},
      {"generation.stop", "eos"},
      {"seed", 4},
  };
  return values;
}

std::vector<std::string> fields_of(const Json& json) {
  std::vector<std::string> fields;
  const Json flat = json.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string field = pointer.substr(1);
    std::ranges::replace(field, '/', '.');
    fields.push_back(field);
  }
  return fields;
}

Json with(const std::string& field, const Json& value) {
  Json json = to_json(example_conditions());
  std::string pointer = "/" + field;
  std::ranges::replace(pointer, '.', '/');
  json.at(Json::json_pointer(pointer)) = value;
  return json;
}

// What a file of them holds; CorruptFile with all that is wrong.
Conditions conditions_from_json(const Json& json, const std::string& place) {
  std::vector<std::string> faults;
  Conditions conditions = read_conditions(json, "", &faults);
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  return conditions;
}

TEST(Conditions, AreReadAsTheyWereWritten) {
  EXPECT_EQ(conditions_from_json(to_json(example_conditions()), "file"), example_conditions());
  Conditions bare = example_conditions();
  bare.learned_on.reset();
  bare.measured_on.reset();
  EXPECT_EQ(conditions_from_json(to_json(bare), "file"), bare);
  EXPECT_NE(bare, example_conditions());
}

// A field that is new in the JSON form but not here fails the first expectation.
TEST(Conditions, ADifferenceInAnyFieldIsFoundAndNamedWithBothValues) {
  const std::vector<std::string> fields = fields_of(to_json(example_conditions()));
  EXPECT_EQ(fields.size(), other_values().size());
  EXPECT_THAT(differences(example_conditions(), example_conditions()), IsEmpty());
  for (const std::string& field : fields) {
    ASSERT_TRUE(other_values().contains(field)) << field;
    const Json& value = other_values().at(field);
    std::string pointer = "/" + field;
    std::ranges::replace(pointer, '.', '/');
    const Conditions other = conditions_from_json(with(field, value), "file");
    EXPECT_NE(other, example_conditions()) << field;
    EXPECT_THAT(
        differences(example_conditions(), other),
        ElementsAre(Difference{field, to_json(example_conditions()).at(Json::json_pointer(pointer)).dump(),
                               value.dump()}));
  }
}

TEST(Conditions, EveryFieldIsRequiredAndCheckedAndNamed) {
  for (const std::string& field : fields_of(to_json(example_conditions()))) {
    std::string pointer = "/" + field;
    std::ranges::replace(pointer, '.', '/');
    for (const bool missing : {true, false}) {
      Json json = with(field, Json::array());
      const Json::json_pointer place(pointer);
      if (missing) json.at(place.parent_pointer()).erase(place.back());
      try {
        (void)conditions_from_json(json, "file");
        FAIL() << field;
      } catch (const CorruptFile& error) {
        EXPECT_THAT(error.what(), Names("file", field));
      }
    }
  }
  EXPECT_THROW((void)conditions_from_json(with("model", 7), "file"), CorruptFile);
  EXPECT_THROW((void)conditions_from_json(Json(), "file"), CorruptFile);
  Json extra = to_json(example_conditions());
  extra["adapter"] = "none";
  EXPECT_THROW((void)conditions_from_json(extra, "file"), CorruptFile);
}

TEST(Conditions, AFieldThatIsNullIsUnknownAndNoDifference) {
  for (const std::string& field : fields_of(to_json(example_conditions()))) {
    const Conditions unsure = conditions_from_json(with(field, nullptr), "file");
    EXPECT_THAT(unsure.unknown, ElementsAre(field));
    EXPECT_EQ(to_json(unsure), with(field, nullptr));
    EXPECT_THAT(differences(unsure, example_conditions()), IsEmpty());
    EXPECT_THAT(differences(example_conditions(), unsure), IsEmpty());
    EXPECT_NE(unsure, example_conditions());
  }
  const Conditions none = conditions_from_json(unknown_conditions(), "file");
  EXPECT_THAT(differences(none, example_conditions()), IsEmpty());
  EXPECT_FALSE(none.measured_on);
}

TEST(Conditions, AUnitOfRowsIsAnotherThanTheOneThatFilesDoNotSay) {
  Conditions samples = example_conditions();
  samples.attention = {.estimator = kernels::Estimator::kJoint};
  Conditions rows = samples;
  rows.attention.unit = kernels::BudgetUnit::kRows;
  EXPECT_EQ(conditions_from_json(to_json(rows), "file"), rows);
  EXPECT_EQ(full_json(samples).at("attention").at("unit"), "samples");
  EXPECT_FALSE(to_json(samples).at("attention").contains("unit"));
  EXPECT_THAT(decisive_differences(samples, rows),
              ElementsAre(Difference{"attention.unit", "\"samples\"", "\"rows\""}));
  EXPECT_THAT(decisive_differences(rows, samples),
              ElementsAre(Difference{"attention.unit", "\"rows\"", "\"samples\""}));
  EXPECT_THAT(differences(rows, rows), IsEmpty());
  EXPECT_THAT(describe(rows), Names("joint", "rows"));
  Conditions norms = rows;
  set_parameter(&norms.attention, "value-norms", 1);
  EXPECT_THAT(decisive_differences(rows, norms),
              ElementsAre(Difference{"attention.parameters.value-norms", "0.0", "1.0"}));
  const Conditions none = conditions_from_json(unknown_conditions(), "file");
  EXPECT_THAT(differences(none, rows), IsEmpty()) << "of an unknown estimator the unit is unknown";
}

TEST(Conditions, SplitKeysAreOthersThanThoseThatFilesDoNotSay) {
  const Conditions sixteen = example_conditions();
  Conditions split = sixteen;
  split.generation.keys = kernels::KeyFormat::kSplit;
  EXPECT_FALSE(to_json(sixteen).at("generation").contains("keys"));
  EXPECT_EQ(full_json(sixteen).at("generation").at("keys"), "16-bit");
  EXPECT_EQ(to_json(split).at("generation").at("keys"), "split");
  EXPECT_EQ(conditions_from_json(to_json(split), "a.json"), split);
  EXPECT_THAT(differences(sixteen, split),
              ElementsAre(Difference{"generation.keys", "\"16-bit\"", "\"split\""}));
  EXPECT_THAT(decisive_differences(split, sixteen),
              ElementsAre(Difference{"generation.keys", "\"split\"", "\"16-bit\""}));
  Json wrong = to_json(split);
  wrong["generation"]["keys"] = "9-bit";
  EXPECT_THAT([&] { (void)conditions_from_json(wrong, "a.json"); },
              ::testing::ThrowsMessage<CorruptFile>(Names("a.json", "generation.keys", "9-bit", "16-bit")));
  Conditions none = sixteen;
  none.unknown = {"generation.dtype"};
  EXPECT_THAT(differences(none, split), IsEmpty()) << "of an unknown dtype the keys are unknown";
}

TEST(Conditions, WeightsOfEightBitsAreOthersThanThoseThatFilesDoNotSay) {
  const Conditions usual = example_conditions();
  Conditions fp8 = usual;
  fp8.generation.weights = model::WeightStorage::kFp8;
  EXPECT_FALSE(to_json(usual).at("generation").contains("weights"));
  EXPECT_EQ(full_json(usual).at("generation").at("weights"), "dtype");
  EXPECT_EQ(to_json(fp8).at("generation").at("weights"), "fp8");
  EXPECT_EQ(conditions_from_json(to_json(fp8), "a.json"), fp8);
  EXPECT_THAT(decisive_differences(usual, fp8),
              ElementsAre(Difference{"generation.weights", "\"dtype\"", "\"fp8\""}));
  EXPECT_THAT(describe(fp8), Names("weights fp8"));
  EXPECT_THAT(describe(usual), ::testing::Not(Names("weights")));
  Json wrong = to_json(fp8);
  wrong["generation"]["weights"] = "int4";
  EXPECT_THAT(
      [&] { (void)conditions_from_json(wrong, "a.json"); },
      ::testing::ThrowsMessage<CorruptFile>(Names("a.json", "generation.weights", "int4", "fp8-logits")));
  Conditions none = usual;
  none.unknown = {"generation.dtype"};
  EXPECT_THAT(differences(none, fp8), IsEmpty()) << "of an unknown dtype the weights are unknown";
}

TEST(Conditions, FieldsOfTheDataAreSaidWhereTheyAreNotTheUsualOnes) {
  const Conditions usual = example_conditions();
  EXPECT_FALSE(to_json(usual).at("measured_on").contains("question_field"));
  Conditions other = usual;
  other.learned_on->fields.answer = "solution";
  EXPECT_THAT(differences(usual, other),
              ElementsAre(Difference{"learned_on.answer_field", "\"answer\"", "\"solution\""}));
  EXPECT_THAT(decisive_differences(usual, other), IsEmpty()) << "what was learned on does not count";
  other.measured_on->fields.question = "problem";
  EXPECT_EQ(conditions_from_json(to_json(other), "file"), other);
  EXPECT_THAT(decisive_differences(usual, other),
              ElementsAre(Difference{"measured_on.question_field", "\"question\"", "\"problem\""}));
  EXPECT_THAT(decisive_differences(other, usual),
              ElementsAre(Difference{"measured_on.question_field", "\"problem\"", "\"question\""}));
}

TEST(Conditions, AnAdapterIsReadAsItWasWrittenAndAbsentWhereThereIsNone) {
  const auto with_adapter = [](const char* id, char fingerprint) {
    Conditions conditions = example_conditions();
    conditions.model.adapter = {.id = id, .fingerprint = std::string(64, fingerprint)};
    return conditions;
  };
  const Conditions adapted = with_adapter("lora", '7');
  EXPECT_FALSE(to_json(example_conditions()).at("model").contains("adapter"));
  EXPECT_EQ(to_json(adapted).at("model").at("adapter"),
            Json({{"id", "lora"}, {"fingerprint", std::string(64, '7')}}));
  EXPECT_EQ(conditions_from_json(to_json(adapted), "file"), adapted);
  EXPECT_THAT(describe(adapted), Names("lora"));

  // None is another model than one with an adapter, on either side.
  const std::string shown = to_json(adapted).at("model").at("adapter").dump();
  EXPECT_THAT(decisive_differences(example_conditions(), adapted),
              ElementsAre(Difference{"model.adapter", "null", shown}));
  EXPECT_THAT(decisive_differences(adapted, example_conditions()),
              ElementsAre(Difference{"model.adapter", shown, "null"}));
  EXPECT_THAT(differences(adapted, adapted), IsEmpty());
  EXPECT_THAT(differences(adapted, with_adapter("copy", '7')),
              ElementsAre(Difference{"model.adapter.id", "\"lora\"", "\"copy\""}));
  EXPECT_THAT(decisive_differences(adapted, with_adapter("copy", '7')), IsEmpty());
  EXPECT_THAT(decisive_differences(adapted, with_adapter("lora", '8')),
              ElementsAre(Difference{"model.adapter.fingerprint", '"' + std::string(64, '7') + '"',
                                     '"' + std::string(64, '8') + '"'}));
}

TEST(Conditions, AnAdapterIsCheckedAndItsFaultNamed) {
  const auto faults_of = [](const Json& adapter) {
    Json json = to_json(example_conditions());
    json["model"]["adapter"] = adapter;
    std::vector<std::string> faults;
    (void)read_conditions(json, "", &faults);
    return fmt::format("{}", fmt::join(faults, "; "));
  };
  const std::string hash(64, '7');
  EXPECT_EQ(faults_of({{"id", "lora"}, {"fingerprint", hash}}), "");
  EXPECT_THAT(faults_of(nullptr), Names("model.adapter", "null"));
  EXPECT_THAT(faults_of("lora"), Names("model.adapter", "lora"));
  EXPECT_THAT(faults_of({{"id", "lora"}}), Names("model.adapter.fingerprint"));
  EXPECT_THAT(faults_of({{"id", "lora"}, {"fingerprint", "7"}}), Names("model.adapter.fingerprint", 7));
  EXPECT_THAT(faults_of({{"id", ""}, {"fingerprint", hash}}), Names("model.adapter.id"));
  EXPECT_THAT(faults_of({{"id", "lora"}, {"fingerprint", hash}, {"rank", 4}}), Names("model.adapter.rank"));
}

TEST(Conditions, SeedsAndAmountsDoNotDecideResults) {
  std::vector<std::string> free;
  for (const std::string& field : fields_of(to_json(example_conditions())))
    if (!decides_results(field)) free.push_back(field);
  EXPECT_THAT(free, ElementsAre("model.id", "learned_on.sha256", "learned_on.questions",
                                "measured_on.questions", "seed"));
  Conditions other = example_conditions();
  other.seed = 9;
  other.generation.top_p = 1;
  EXPECT_THAT(decisive_differences(example_conditions(), other),
              ElementsAre(Difference{"generation.top_p", "0.95", "1.0"}));
}

}  // namespace
}  // namespace allot::evaluation
