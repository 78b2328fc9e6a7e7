#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/files/export_formats.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "model/model_config.h"
#include "tests/app/report/example_run.h"
#include "tests/app/small_model.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

// A model directory and a schedule learned for it, new for each test.
class Export : public ::testing::Test {
 protected:
  Export() {
    model_ = write_small_model(directory_.path() / "small").model;
    file_ = schedule_file_of(example_run(), "0.1.0");
    file_.conditions.model = model::identify_model(model_);
    write_schedule_file(schedule(), file_);
  }

  std::filesystem::path schedule() const { return directory_.path() / "schedule.json"; }
  ExportRequest request() const { return {.schedule = file_, .model = std::nullopt}; }

  // What `allot export` with these words throws; "" when it does not.
  static std::string fault(const std::vector<std::string>& words) {
    try {
      run_export(words);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const TemporaryDirectory directory_;
  std::filesystem::path model_;
  ScheduleFile file_;
};

TEST_F(Export, JsonHoldsTheSamplesAndHowTheyAreUsed) {
  const Json json = Json::parse(export_schedule(request(), "json"));
  EXPECT_EQ(json, Json({{"model", file_.conditions.model.id},
                        {"estimator", "sys"},
                        {"prefill", "sampled"},
                        {"total", 64},
                        {"samples", file_.schedule.samples},
                        {"conditions", evaluation::to_json(file_.conditions)}}));
}

TEST_F(Export, CsvHasOneLinePerLayer) {
  file_.schedule.samples = {50, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,samples\n0,50\n1,8\n2,6\n");
}

TEST_F(Export, AUnitOfRowsIsNamedInEveryFormat) {
  EXPECT_FALSE(Json::parse(export_schedule(request(), "json")).contains("unit"));
  file_.conditions.attention = {.estimator = kernels::Estimator::kJoint, .unit = kernels::BudgetUnit::kRows};
  file_.schedule.samples = {50, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,rows\n0,50\n1,8\n2,6\n");
  EXPECT_EQ(Json::parse(export_schedule(request(), "json")).at("unit"), "rows");
  const Json overlay = Json::parse(export_schedule(request(), "hf")).at("allot");
  EXPECT_EQ(overlay.at("conditions").at("attention").at("unit"), "rows");
}

TEST_F(Export, ExactLayersAreNamedInEveryFormat) {
  file_.schedule.samples = {kExactLayer, 8, 6};
  EXPECT_EQ(export_schedule(request(), "csv"), "layer,samples\n0,exact\n1,8\n2,6\n");
  const Json samples = {"exact", 8, 6};
  EXPECT_EQ(Json::parse(export_schedule(request(), "json")).at("samples"), samples);
  const Json overlay = Json::parse(export_schedule(request(), "hf")).at("allot");
  EXPECT_EQ(overlay.at("samples"), samples);
  EXPECT_EQ(overlay.at("schema_version"), 3);
  ExportRequest with_model = request();
  with_model.model = model_;
  EXPECT_EQ(Json::parse(export_schedule(with_model, "hf-config")).at("allot"), overlay);
}

TEST_F(Export, OverlayNamesTheModelItIsFor) {
  const Json json = Json::parse(export_schedule(request(), "hf"));
  ASSERT_EQ(json.size(), 1u);
  const Json& allot = json.at("allot");
  EXPECT_EQ(allot.at("schema_version"), 2);
  EXPECT_EQ(allot.at("samples"), file_.schedule.samples);
  EXPECT_EQ(allot.at("conditions"), evaluation::to_json(file_.conditions));
  EXPECT_EQ(allot.at("conditions").at("attention").at("estimator"), "sys");
  EXPECT_EQ(allot.at("conditions").at("generation").at("temperature"), 0);
  EXPECT_EQ(allot.at("run_id"), file_.run_id);
}

TEST_F(Export, MergedConfigKeepsEveryFieldOfTheModelInItsOrder) {
  const std::string before = read_file(model_ / "config.json");
  const std::filesystem::path out = directory_.path() / "exported" / "config.json";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                   "--out", out.string()}),
            "");
  EXPECT_EQ(read_file(model_ / "config.json"), before);
  const Json original = Json::parse(before);
  Json merged = Json::parse(read_file(out));
  EXPECT_EQ(merged.at("allot"), Json::parse(to_hf_overlay(request())).at("allot"));
  merged.erase("allot");
  EXPECT_EQ(merged.dump(), original.dump());
}

TEST_F(Export, FormatsThatAProgramMustObeySayOnStderrWhatItNeeds) {
  for (const ExportFormat& format : export_formats()) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(fault({"--schedule", schedule().string(), "--format", format.name, "--model", model_.string()}),
              "");
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), ::testing::EndsWith("\n"));
    const std::string said = ::testing::internal::GetCapturedStderr();
    if (std::string_view(format.name).starts_with("hf")) {
      EXPECT_THAT(said, ::testing::AllOf(Names("allot_attention.register()"), Names("attn_implementation")));
    } else {
      EXPECT_EQ(said, "") << format.name;
    }
  }
}

TEST_F(Export, EveryFormatIsReachableByItsNameAndEndsWithANewline) {
  ExportRequest with_model = request();
  with_model.model = model_;
  ASSERT_EQ(export_formats().size(), 5u);
  for (const ExportFormat& format : export_formats()) {
    EXPECT_TRUE(export_schedule(with_model, format.name).ends_with("\n")) << format.name;
  }
}

TEST_F(Export, ASolvedTotalSaysInEveryObjectThatItWasNotVerified) {
  ExportRequest request{.schedule = resolve_total(file_, 100), .model = model_};
  const Json resolved = {{"from_total", 64}, {"verified", false}};
  EXPECT_EQ(Json::parse(export_schedule(request, "json")).at("resolved"), resolved);
  EXPECT_EQ(Json::parse(export_schedule(request, "json")).at("total"), 100);
  EXPECT_EQ(Json::parse(export_schedule(request, "hf")).at("allot").at("resolved"), resolved);
  EXPECT_EQ(Json::parse(export_schedule(request, "hf-config")).at("allot").at("resolved"), resolved);
  EXPECT_EQ(parse_schedule_file(export_schedule(request, "schedule"), "s.json"), request.schedule);
  for (const ExportFormat& format : export_formats())
    EXPECT_THAT(export_schedule(request, format.name), Not(HasSubstr("accuracy"))) << format.name;
  EXPECT_FALSE(Json::parse(export_schedule(this->request(), "json")).contains("resolved"));
}

TEST_F(Export, SeveralTotalsBecomeAFileEachInAFolder) {
  const std::filesystem::path out = directory_.path() / "totals";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40,64,100", "--format", "schedule", "--out",
                   out.string()}),
            "");
  EXPECT_EQ(read_schedule_file(out / "schedule-40.json"), resolve_total(file_, 40));
  EXPECT_EQ(read_schedule_file(out / "schedule-64.json"), file_) << "its own total keeps its evidence";
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40,100", "--format", "csv", "--out",
                   out.string()}),
            "");
  EXPECT_THAT(read_file(out / "schedule-100.csv"), HasSubstr("layer,samples\n0,"));
  EXPECT_EQ(fault({"--schedule", schedule().string(), "--total", "40", "--format", "csv", "--out",
                   (out / "one.csv").string()}),
            "");
  EXPECT_EQ(read_file(out / "one.csv"), read_file(out / "schedule-40.csv"));
}

TEST_F(Export, TotalsThatCannotBeAreWrongUsage) {
  const auto with = [&](const std::string& totals) {
    return fault({"--schedule", schedule().string(), "--total", totals});
  };
  EXPECT_THAT(with("40,100"), Names("--total", "40,100", "--out"));
  EXPECT_THAT(with("40,many"), Names("--total", "many"));
  EXPECT_THAT(with("40,40"), Names("--total", 40, "twice"));
  EXPECT_THAT(with("7"), Names("--total", 7, 8));
  file_.costs.reset();
  write_schedule_file(schedule(), file_);
  EXPECT_THAT(with("40"), Names("--total", 40, file_.run_id, 64));
  EXPECT_EQ(with("64"), "");
}

TEST_F(Export, ModelThatDoesNotMatchIsRefusedNamingBothInEveryFormat) {
  file_.conditions.model.id = "another";
  file_.conditions.model.weights_fingerprint = std::string(64, '9');
  write_schedule_file(schedule(), file_);
  for (const ExportFormat& format : export_formats()) {
    const std::filesystem::path out = directory_.path() / "never";
    EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", format.name, "--model", model_.string(),
                       "--out", out.string()}),
                Names("another", model_.filename(), "weights_fingerprint", std::string(64, '9')));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

TEST_F(Export, TheAdapterOfTheModelMustBeThatOfTheSchedule) {
  const std::string adapter = directory_.path() / "lora";
  write_small_adapter(adapter, 4);
  const std::vector<std::string> plain = {"--schedule", schedule().string(),          "--format", "csv",
                                          "--out",      directory_.path() / "out.csv"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), plain.begin(), plain.end());
    return fault(more);
  };
  EXPECT_THAT(with({"--model", model_.string(), "--adapter", adapter}), Names("adapter", "null", "lora"));
  EXPECT_THAT(with({"--adapter", adapter}), Names("--adapter", adapter, "--model"));
  file_.conditions.model = model::identify_model(model_, {.adapter = adapter});
  write_schedule_file(schedule(), file_);
  EXPECT_EQ(with({"--model", model_.string(), "--adapter", adapter}), "");
  EXPECT_THAT(with({"--model", model_.string()}), Names("adapter", "lora", "null"));
}

TEST_F(Export, NothingIsWrittenIntoTheModelDirectory) {
  const std::string before = read_file(model_ / "config.json");
  for (const std::filesystem::path& out :
       {model_ / "config.json", model_ / "other.json", model_ / "." / "config.json",
        model_ / "sub" / ".." / "config.json"}) {
    EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                       "--out", out.string()}),
                Names(out, "model directory"));
  }
  std::filesystem::create_directory_symlink(model_, directory_.path() / "link");
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config", "--model", model_.string(),
                     "--out", (directory_.path() / "link" / "config.json").string()}),
              Names("model directory"));
  EXPECT_EQ(read_file(model_ / "config.json"), before);
  EXPECT_FALSE(std::filesystem::exists(model_ / "other.json"));
}

TEST_F(Export, WrongUseIsAnsweredWithWhatIsMissing) {
  EXPECT_THAT(fault({"--format", "csv"}), Names("--schedule"));
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "hf-config"}), Names("--model"));
  EXPECT_THAT(fault({"--schedule", schedule().string(), "--format", "yaml"}),
              Names("--format", "yaml", "csv"));
  EXPECT_THAT(fault({"--schedule", (directory_.path() / "absent.json").string()}), Names("absent.json"));
  EXPECT_THROW((void)export_schedule(request(), "yaml"), InvalidArgument);
  EXPECT_THROW((void)export_schedule(request(), "hf-config"), InvalidArgument);
}

TEST_F(Export, ConfigThatIsNoObjectIsRefused) {
  write_file_atomically(model_ / "config.json", "[1]");
  ExportRequest with_model = request();
  with_model.model = model_;
  EXPECT_THROW((void)to_hf_config(with_model), CorruptFile);
}

}  // namespace
}  // namespace allot::app
