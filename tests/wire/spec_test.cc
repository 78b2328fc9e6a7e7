#include "wire/spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>

#include "base/error.h"
#include "tests/names.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::ThrowsMessage;

RunSpec example() {
  RunSpec spec;
  spec.set_schema_version(1);
  spec.set_run_id("run-1");
  spec.mutable_model()->set_id("tiny");
  spec.mutable_model()->set_layers(8);
  spec.mutable_task()->set_name("gsm8k");
  spec.mutable_task()->mutable_train()->set_sha256("aa");
  (*spec.mutable_policy()->mutable_parameters())["learning_rate"] = 0.1;
  spec.set_episodes(250);
  return spec;
}

TEST(Spec, JsonKeepsEveryFieldAndPrintsTheUnsetOnes) {
  const std::string json = to_json(example());
  EXPECT_TRUE(MessageDifferencer::Equals(spec_from_json(json, "test"), example()));
  EXPECT_THAT(json, HasSubstr("\"questions_per_episode\": 0"));
  EXPECT_THAT(json, HasSubstr("\"learning_rate\": 0.1"));
}

TEST(Spec, TextThatIsNoSpecIsCorruptAndNamesTheFile) {
  for (const char* json : {"", "{", "[]", R"({"episodes": "many"})", R"({"no_such_field": 1})"}) {
    EXPECT_THAT([&] { (void)spec_from_json(json, "runs/a/spec.json"); },
                ThrowsMessage<CorruptFile>(Names("runs/a/spec.json")))
        << json;
  }
  EXPECT_THROW((void)read_spec("no/such/spec.json"), NotFound);
}

TEST(Spec, DifferencesNameFieldAndBothValues) {
  RunSpec other = example();
  other.mutable_model()->set_layers(28);
  other.mutable_task()->mutable_train()->set_sha256("bb");
  (*other.mutable_policy()->mutable_parameters())["learning_rate"] = 0.25;
  other.set_episodes(500);
  EXPECT_THAT(differences(example(), other),
              ElementsAre("model.layers: 8 != 28", "task.train.sha256: 'aa' != 'bb'",
                          "policy.learning_rate: 0.1 != 0.25", "episodes: 250 != 500"));
}

TEST(Spec, TasksOfAnEvaluationAreComparedOneByOne) {
  RunSpec one = example();
  for (const char* name : {"first", "second"}) {
    EvaluationTask& task = *one.mutable_evaluation()->add_more();
    task.mutable_task()->set_name(name);
    task.mutable_task()->mutable_train()->set_path(name);
  }
  EXPECT_TRUE(MessageDifferencer::Equals(spec_from_json(to_json(one), "test"), one));
  RunSpec other = one;
  other.mutable_evaluation()->mutable_more(1)->mutable_task()->mutable_train()->set_path("elsewhere");
  EXPECT_THAT(differences(one, other), IsEmpty());
  other.mutable_evaluation()->mutable_more(1)->mutable_task()->set_name("third");
  other.mutable_evaluation()->mutable_more(0)->set_questions_per_episode(4);
  EXPECT_THAT(differences(one, other), ElementsAre("evaluation.more[0].questions_per_episode: 0 != 4",
                                                   "evaluation.more[1].task.name: 'second' != 'third'"));
  other.mutable_evaluation()->mutable_more()->RemoveLast();
  EXPECT_THAT(differences(one, other), ElementsAre("evaluation.more: 2 of them != 1"));
}

TEST(Spec, AnAdapterThatOnlyOneSideHasIsNamedAgainstNone) {
  RunSpec adapted = example();
  auto& adapter = *adapted.mutable_model()->mutable_adapter();
  adapter.set_id("lora");
  adapter.set_fingerprint("ab");
  adapter.set_path("/models/lora");
  EXPECT_THAT(differences(example(), adapted), ElementsAre("model.adapter: none != 'lora' (ab)"));
  EXPECT_THAT(differences(adapted.model(), example().model()), ElementsAre("adapter: 'lora' (ab) != none"));
  RunSpec other = adapted;
  other.mutable_model()->mutable_adapter()->set_id("copy");
  other.mutable_model()->mutable_adapter()->set_path("/elsewhere/copy");
  EXPECT_THAT(differences(adapted, other), IsEmpty());
  other.mutable_model()->mutable_adapter()->set_fingerprint("cd");
  EXPECT_THAT(differences(adapted, other), ElementsAre("model.adapter.fingerprint: 'ab' != 'cd'"));
}

// A release without adapters reads it.
TEST(Spec, JsonOfARunWithoutAnAdapterDoesNotNameIt) {
  EXPECT_THAT(to_json(example()), testing::Not(HasSubstr("adapter")));
}

// As the release before wrote it: a field for each parameter of each learner.
RunSpec of_the_release_before(double gain) {
  return spec_from_json(R"({"policy": {"name": "pairs", "total": "64", "learning_rate": 0.5, "gain": )" +
                            std::to_string(gain) + R"(, "pairs_per_update": 4}})",
                        "test");
}

TEST(Spec, ParametersByNameAreComparedWithTheFieldsOfTheReleaseBefore) {
  RunSpec now = of_the_release_before(20);
  auto& parameters = *now.mutable_policy()->mutable_parameters();
  parameters["gain"] = 20;
  parameters["pairs_per_update"] = 4;
  EXPECT_THAT(differences(of_the_release_before(20), now), IsEmpty());
  EXPECT_THAT(differences(now, of_the_release_before(11)), ElementsAre("policy.gain: 20 != 11"));
  EXPECT_THAT(differences(of_the_release_before(11), of_the_release_before(20)),
              ElementsAre("policy.gain: 11 != 20"));
  parameters["of_later"] = 3;
  EXPECT_THAT(differences(of_the_release_before(20), now), ElementsAre("policy.of_later: none != 3"));
}

TEST(Spec, FieldsOfOtherLearnersMayDiffer) {
  RunSpec old_run = of_the_release_before(20);
  RunSpec now = spec_from_json(
      R"({"policy": {"name": "pairs", "total": "64", "learning_rate": 0.02, "gain": 20}})", "test");
  (*now.mutable_policy()->mutable_parameters())["gain"] = 20;
  EXPECT_THAT(differences(old_run, now), IsEmpty());
}

TEST(Spec, ARunFromBeforeAnOptionalFieldGoesOnWithoutIt) {
  RunSpec wanted = example();
  wanted.set_preflight_questions(32);
  wanted.set_gain_floor(0.005);
  EXPECT_THAT(to_json(example()), Not(HasSubstr("preflight_questions")));
  EXPECT_THAT(differences(spec_from_json(to_json(example()), "test"), wanted), IsEmpty());
  RunSpec begun = example();
  begun.set_preflight_questions(0);
  EXPECT_THAT(differences(begun, wanted), ElementsAre(Names("preflight_questions", 0, 32)));
}

// A worker of the release before does not know the names, and would read other fields of the same file.
TEST(Spec, FieldsOfADatasetThatOnlyOneSideNamesAreComparedWithTheUsualOnes) {
  const DatasetIdentity usual;
  DatasetIdentity named;
  named.set_question_field("problem");
  EXPECT_THAT(differences(named, usual), ElementsAre("question_field: 'problem' != 'question'"));
  EXPECT_THAT(differences(usual, named), ElementsAre("question_field: 'question' != 'problem'"));
  named.set_question_field("question");
  named.set_answer_field("answer");
  EXPECT_THAT(differences(named, usual), IsEmpty());
}

TEST(Spec, NamesAndPlacesMayDiffer) {
  RunSpec other = example();
  other.set_run_id("run-2");
  other.set_model_path("/elsewhere/tiny");
  other.mutable_model()->set_id("tiny-copy");
  other.mutable_task()->mutable_train()->set_path("/elsewhere/train.jsonl");
  EXPECT_THAT(differences(example(), other), IsEmpty());
}

}  // namespace
}  // namespace allot::wire
