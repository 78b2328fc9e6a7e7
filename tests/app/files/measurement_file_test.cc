#include "app/files/measurement_file.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

const policy::Schedule kFour{{4, 4}}, kSkewed{{7, 1}};

evaluation::Conditions conditions() {
  evaluation::Conditions conditions;
  conditions.model.id = "model";
  conditions.model.config_sha256 = std::string(64, 'a');
  conditions.model.tokenizer_sha256 = std::string(64, 'b');
  conditions.model.weights_fingerprint = std::string(64, 'c');
  conditions.model.layers = 2;
  conditions.model.num_q_heads = 2;
  conditions.model.num_kv_heads = 1;
  conditions.model.head_dim = 8;
  conditions.task.name = "gsm8k";
  conditions.task.version = 1;
  conditions.task.prompt_style = "plain";
  conditions.attention.estimator = kernels::Estimator::kJoint;
  return conditions;
}

std::string head() {
  return measurement_head(conditions(), "reply", 8);
}

std::string line(int64_t batch, const policy::Schedule& schedule, double divergence) {
  return measurement_lines(batch, std::vector{schedule}, std::vector{divergence});
}

TEST(MeasurementFile, IsReadAsItWasWritten) {
  const std::vector<policy::Schedule> first = {kFour, kSkewed};
  const MeasurementFile file = parse_measurements(
      head() + measurement_lines(0, first, std::vector{0.25, 0.1}) + line(3, kSkewed, 1e-3), "here");
  EXPECT_EQ(file.conditions, conditions());
  EXPECT_EQ(file.mode, "reply");
  EXPECT_EQ(file.texts, 8);
  ASSERT_EQ(file.batches.size(), 2u);
  EXPECT_THAT(file.batches[0].schedules, ElementsAre(kFour, kSkewed));
  EXPECT_THAT(file.batches[0].divergences, ElementsAre(0.25, 0.1));
  EXPECT_THAT(file.batches[1].schedules, ElementsAre(kSkewed));
  EXPECT_THAT(file.batches[1].divergences, ElementsAre(1e-3));
}

TEST(MeasurementFile, AHeadThatSaysNoTextsIsOfSixteen) {
  std::string head_before = head();
  head_before.erase(head_before.find("\"texts\""), std::string_view("\"texts\":8,").size());
  EXPECT_EQ(parse_measurements(head_before + line(0, kFour, 0.5), "here").texts, 16);
}

TEST(MeasurementFile, LinesOfABatchMayLieApart) {
  const MeasurementFile file =
      parse_measurements(head() + line(5, kFour, 0.5) + line(2, kFour, 0.5) + line(5, kSkewed, 0.5), "here");
  ASSERT_EQ(file.batches.size(), 2u);
  EXPECT_THAT(file.batches[0].schedules, ElementsAre(kFour, kSkewed));
}

TEST(MeasurementFile, AWrongLineIsNamedWithItsNumberAndWhatIsWrong) {
  const std::string good = head() + line(0, kFour, 0.5);
  const auto refuses = [&](const std::string& wrong, const auto& named) {
    EXPECT_THAT([&] { parse_measurements(good + wrong + "\n", "here"); }, ThrowsMessage<CorruptFile>(named))
        << wrong;
  };
  refuses("no json", Names("here:3"));
  refuses("[1]", Names("here:3", "allot calibrate --measurements"));
  refuses(R"({"batch":0,"schedule":[4,4]})", Names("here:3", "divergence"));
  refuses(R"({"batch":-1,"schedule":[4,4],"divergence":1})", Names("here:3", "batch", -1));
  refuses(R"({"batch":0,"schedule":[4,-4],"divergence":1})", Names("here:3", "schedule", -4));
  refuses(R"({"batch":0,"schedule":[4,"exact"],"divergence":1})", Names("here:3", "4,exact"));
  refuses(R"({"batch":0,"schedule":[4,4],"divergence":0})", Names("here:3", "divergence", 0));
  refuses(R"({"batch":0,"schedule":[4,4],"divergence":1,"more":2})", Names("here:3", "more"));
  refuses(R"({"batch":0,"schedule":[4,4,4],"divergence":1})", Names("here:3", 3, 2));
}

TEST(MeasurementFile, AWrongHeadAndAFileWithoutMeasurementsAreRefused) {
  EXPECT_THAT([] { parse_measurements("", "here"); }, ThrowsMessage<CorruptFile>(Names("here")));
  EXPECT_THAT([] { parse_measurements(head(), "here"); }, ThrowsMessage<CorruptFile>(Names("here")));
  EXPECT_THAT([] { parse_measurements(line(0, kFour, 0.5), "here"); },
              ThrowsMessage<CorruptFile>(Names("here:1", "schema_version")));
  std::string later = head();
  later.replace(later.find(":1,"), 3, ":2,");
  EXPECT_THAT([&] { parse_measurements(later, "here"); }, ThrowsMessage<Unsupported>(Names("here", 2, 1)));
}

}  // namespace
}  // namespace allot::app
