// The schedule that a model directory carries in its config.json, from `allot export` to those who follow it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/cli/command.h"
#include "app/files/export_formats.h"
#include "app/files/schedule_argument.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "tests/app/report/example_run.h"
#include "tests/app/small_model.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

class OwnSchedule : public ::testing::Test {
 protected:
  OwnSchedule() {
    model_ = write_small_model(directory_.path() / "small").model;
    file_ = schedule_file_of(example_run(), "0.1.0");
    file_.conditions.model = model::identify_model(model_);
  }

  void export_into_model() const {
    write_file_atomically(model_ / "config.json",
                          export_schedule({.schedule = file_, .model = model_}, "hf-config"));
  }
  // Changes the key in config.json.
  void change(const std::function<void(Json&)>& edit) const {
    Json config = Json::parse(read_file(model_ / "config.json"));
    edit(config["allot"]);
    write_file_atomically(model_ / "config.json", config.dump());
  }
  NamedSchedule own() const {
    return parse_schedule_argument("config", model::identify_model(model_), model_);
  }

  const TemporaryDirectory directory_;
  std::filesystem::path model_;
  ScheduleFile file_;
};

TEST_F(OwnSchedule, WhatWasExportedIsReadThoughTheKeyChangedTheConfigsHash) {
  export_into_model();
  ASSERT_NE(model::identify_model(model_).config_sha256, file_.conditions.model.config_sha256);
  const NamedSchedule named = own();
  EXPECT_EQ(named.schedule, file_.schedule);
  EXPECT_EQ(named.file->total, file_.total);
  EXPECT_EQ(named.file->run_id, file_.run_id);
  EXPECT_EQ(named.file->conditions.attention, file_.conditions.attention);
  EXPECT_TRUE(named.file->conditions.unknown.contains("model.config_sha256"));
}

TEST_F(OwnSchedule, WithoutTheKeyThereIsNone) {
  EXPECT_FALSE(read_own_schedule(model_));
  EXPECT_THAT(message_of<NotFound>([&] { own(); }), Names("config.json", "allot"));
}

TEST_F(OwnSchedule, OtherWeightsAreRefused) {
  export_into_model();
  change([](Json& key) { key["conditions"]["model"]["weights_fingerprint"] = std::string(64, 'e'); });
  EXPECT_THAT(message_of<Mismatch>([&] { own(); }), Names("weights_fingerprint", std::string(64, 'e')));
}

TEST_F(OwnSchedule, FaultsOfTheKeyAreNamedWithTheirPlace) {
  export_into_model();
  change([](Json& key) {
    key["samples"] = {1, 2, 3};
    key.erase("run_id");
  });
  EXPECT_THAT(message_of<CorruptFile>([&] { own(); }), Names("config.json", "run_id"));
  change([](Json& key) { key["run_id"] = "r"; });
  EXPECT_THAT(message_of<CorruptFile>([&] { own(); }), Names("samples", 3, 8));
  change([](Json& key) { key["schema_version"] = 99; });
  EXPECT_THAT(message_of<Unsupported>([&] { own(); }), Names("schema_version", 99));
  // Version 4 has bands, which are in no export.
  change([](Json& key) { key["schema_version"] = 4; });
  EXPECT_THAT(message_of<Unsupported>([&] { own(); }), Names("schema_version", 4, 2, 3));
  change([](Json& key) { key = 5; });
  EXPECT_THROW(own(), CorruptFile);
}

TEST_F(OwnSchedule, AResolvedOneSaysThatItWasNotVerified) {
  export_into_model();
  change([](Json& key) { key["resolved"] = {{"from_total", 123}, {"verified", false}}; });
  EXPECT_THAT(resolved_text(*own().file), Names(123, "not verified"));
}

TEST_F(OwnSchedule, InspectShowsItAndNamesWhatIsWrongWithIt) {
  const auto inspected = [&] {
    ::testing::internal::CaptureStdout();
    const int code = run_inspect(std::vector<std::string>{model_.string(), "--json"});
    Json json = Json::parse(::testing::internal::GetCapturedStdout());
    json["code"] = code;
    return json;
  };
  EXPECT_FALSE(inspected().contains("schedule_samples"));
  export_into_model();
  const Json shown = inspected();
  EXPECT_EQ(shown["schedule_total"], file_.total);
  EXPECT_EQ(shown["schedule_run_id"], file_.run_id);
  EXPECT_EQ(shown["code"], 0) << shown.dump();
  change([](Json& key) { key["conditions"]["model"]["weights_fingerprint"] = std::string(64, 'e'); });
  EXPECT_EQ(inspected()["code"], 1);
}

}  // namespace
}  // namespace allot::app
