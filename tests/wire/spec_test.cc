#include "wire/spec.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>

#include "base/error.h"

namespace allot::wire {
namespace {

using google::protobuf::util::MessageDifferencer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

RunSpec example() {
  RunSpec spec;
  spec.set_schema_version(1);
  spec.set_run_id("run-1");
  spec.mutable_model()->set_id("tiny");
  spec.mutable_model()->set_layers(8);
  spec.mutable_task()->set_name("gsm8k");
  spec.mutable_task()->mutable_train()->set_sha256("aa");
  spec.mutable_policy()->set_learning_rate(0.1);
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
                ThrowsMessage<CorruptFile>(HasSubstr("runs/a/spec.json")))
        << json;
  }
  EXPECT_THROW((void)read_spec("no/such/spec.json"), NotFound);
}

TEST(Spec, DifferencesNameFieldAndBothValues) {
  RunSpec other = example();
  other.mutable_model()->set_layers(28);
  other.mutable_task()->mutable_train()->set_sha256("bb");
  other.mutable_policy()->set_learning_rate(0.25);
  other.set_episodes(500);
  EXPECT_THAT(differences(example(), other),
              ElementsAre("model.layers: 8 != 28", "task.train.sha256: 'aa' != 'bb'",
                          "policy.learning_rate: 0.1 != 0.25", "episodes: 250 != 500"));
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
