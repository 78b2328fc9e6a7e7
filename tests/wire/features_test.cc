#include "wire/features.h"

#include <gmock/gmock.h>

#include "tests/names.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Features, AreMissingWhereTheSpecAsksForThemAndTheHelloDoesNotNameThem) {
  RunSpec spec;
  Hello hello;
  EXPECT_THAT(missing_features(spec, hello), IsEmpty()) << "nothing is asked for";
  spec.mutable_generation()->set_keys("split");
  EXPECT_THAT(missing_features(spec, hello), ElementsAre(Names("generation.keys", "split")));
  spec.mutable_generation()->set_weights("fp8");
  hello.add_features("generation.keys");
  hello.add_features("one of a later release");
  EXPECT_THAT(missing_features(spec, hello), ElementsAre(Names("generation.weights", "fp8")));
}

TEST(Features, OfThisReleaseAreAllThatASpecCanAskFor) {
  RunSpec spec;
  spec.mutable_generation()->set_keys("high");
  spec.mutable_generation()->set_weights("fp8-logits");
  Hello hello;
  for (const std::string_view name : known_features()) hello.add_features(std::string(name));
  EXPECT_THAT(missing_features(spec, hello), IsEmpty());
}

}  // namespace
}  // namespace allot::wire
