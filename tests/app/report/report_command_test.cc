#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "aggregator/history.h"
#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/report/report.h"
#include "base/error.h"
#include "base/file.h"
#include "tests/app/report/example_run.h"
#include "tests/app/report/xml.h"
#include "tests/names.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using ::testing::HasSubstr;

// A real run directory in which nothing has happened yet, new for each test.
class ReportCommand : public ::testing::Test {
 protected:
  ReportCommand()
      : run_(std::filesystem::path(::testing::TempDir()) / "report_command_test" /
             ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(run_);
    const aggregator::RunDirectory directory(run_, example_run().spec);
    aggregator::open_sqlite_history(aggregator::history_path(run_), "0.1.0", Timestamp{});
  }

  // The conditions of the run, but for what `change` does to them.
  void write_ablation(const std::function<void(evaluation::Conditions&)>& change = [](auto&) {}) {
    evaluation::Conditions conditions = worker::conditions_of(example_run().spec);
    conditions.learned_on.reset();
    conditions.measured_on->questions = 10;
    conditions.seed = 12;
    change(conditions);
    const std::vector<double> right(10, 1);
    const std::vector<std::vector<double>> layers(8, std::vector<double>(10, 0));
    evaluation::Ablation ablation =
        evaluation::make_ablation(conditions, policy::uniform_schedule(8, 16), right, layers);
    ablation.tool_version = "0.1.0";
    write_file_atomically(run_ / "ablation.json", evaluation::format_ablation(ablation));
  }

  static std::string fault(const std::vector<std::string>& words) {
    try {
      run_report(words);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path run_;
};

TEST_F(ReportCommand, WritesThePageIntoTheRunDirectoryOrWhereItIsAsked) {
  EXPECT_EQ(fault({"--run", run_.string()}), "");
  const std::string page = read_file(run_ / "report.html");
  EXPECT_THAT(parse_xml(page).all("h1").at(0)->text, Names("tiny-gsm"));
  const std::filesystem::path elsewhere = run_ / "elsewhere" / "page.html";
  EXPECT_EQ(fault({"--run", run_.string(), "--out", elsewhere.string()}), "");
  EXPECT_EQ(read_file(elsewhere), page);
}

TEST_F(ReportCommand, AblationOfTheRunsModelIsShown) {
  write_ablation();
  const std::filesystem::path plots = run_ / "plots";
  EXPECT_EQ(fault({"--run", run_.string(), "--plots", plots.string()}), "");
  EXPECT_THAT(read_file(run_ / "report.html"), HasSubstr("What each layer needs"));
  EXPECT_EQ(parse_xml(read_file(plots / "ablation.svg")).name, "svg");
}

TEST_F(ReportCommand, TotalsOfTheRunAreShownAndThoseOfAnotherRefused) {
  evaluation::Frontier frontier;
  frontier.conditions = worker::conditions_of(example_run().spec);
  frontier.conditions.learned_on.reset();
  frontier.conditions.measured_on->questions = 2;
  frontier.tool_version = "0.1.0";
  frontier.run_id = example_run().spec.run_id();
  const std::vector<double> right = {1, 1}, half = {1, 0};
  frontier.dense = evaluation::accuracy_of(right);
  frontier.points = {evaluation::score_point({.total = 32,
                                              .resolved = true,
                                              .uniform_schedule = policy::uniform_schedule(8, 4),
                                              .learned_schedule = {{11, 3, 3, 3, 3, 3, 3, 3}}},
                                             half, right)};
  const auto write = [&] {
    write_file_atomically(run_ / "frontier.json", evaluation::format_frontier(frontier));
    return fault({"--run", run_.string(), "--plots", (run_ / "plots").string()});
  };
  EXPECT_EQ(write(), "");
  EXPECT_EQ(parse_xml(read_file(run_ / "plots" / "frontier.svg")).name, "svg");
  frontier.run_id = "another";
  EXPECT_THAT(write(), Names("frontier.json", "another", example_run().spec.run_id()));
  frontier.run_id = example_run().spec.run_id();
  frontier.conditions.model.weights_fingerprint = std::string(64, '7');
  EXPECT_THAT(write(), Names("frontier.json", std::string(64, '7')));
}

TEST_F(ReportCommand, AblationUnderOtherConditionsIsRefusedWithTheDifferences) {
  write_ablation([](evaluation::Conditions& conditions) {
    conditions.model.weights_fingerprint = std::string(64, '7');
  });
  EXPECT_THAT(fault({"--run", run_.string()}),
              Names("ablation.json", std::string(64, '7'), std::string(64, 'c')));
  write_ablation([](evaluation::Conditions& conditions) {
    conditions.task.name = "mmlu";
    conditions.attention.estimator = kernels::Estimator::kIid;
    conditions.generation.max_new_tokens = 31;
  });
  EXPECT_THAT(fault({"--run", run_.string()}), Names("task.name", "mmlu", "gsm8k", "attention.estimator",
                                                     "iid", "sys", "generation.max_new_tokens", 31));
  EXPECT_FALSE(std::filesystem::exists(run_ / "report.html"));
}

// Stands in for librsvg's converter: the only program that can be found while it exists.
class OnlyConverter {
 public:
  OnlyConverter(const std::filesystem::path& folder, const std::string& script) : path_(std::getenv("PATH")) {
    std::filesystem::create_directories(folder);
    if (!script.empty()) {
      write_file_atomically(folder / "rsvg-convert", script);
      std::filesystem::permissions(folder / "rsvg-convert", std::filesystem::perms::owner_all);
    }
    setenv("PATH", folder.c_str(), 1);
  }
  ~OnlyConverter() { setenv("PATH", path_.c_str(), 1); }
  OnlyConverter(const OnlyConverter&) = delete;
  OnlyConverter& operator=(const OnlyConverter&) = delete;

 private:
  std::string path_;
};

TEST_F(ReportCommand, PngFilesComeFromTheConverterAndStandBesideTheSvgFiles) {
  write_ablation();
  const OnlyConverter converter(run_ / "bin", "#!/bin/sh\necho \"$5\" > \"$4\"\n");
  const std::filesystem::path plots = run_ / "plots";
  EXPECT_EQ(fault({"--run", run_.string(), "--plots", plots.string(), "--png"}), "");
  EXPECT_EQ(read_file(plots / "ablation.png"), (plots / "ablation.svg").string() + "\n");
}

TEST_F(ReportCommand, ConverterThatIsMissingOrFailsIsNamed) {
  write_ablation();
  const std::vector<std::string> words = {"--run", run_.string(), "--plots", (run_ / "plots").string(),
                                          "--png"};
  {
    const OnlyConverter none(run_ / "empty", "");
    EXPECT_THAT(fault(words), Names("librsvg2-bin"));
  }
  const OnlyConverter failing(run_ / "bin", "#!/bin/sh\nexit 3\n");
  EXPECT_THAT(fault(words), Names("rsvg-convert"));
}

TEST_F(ReportCommand, WrongUseIsNamed) {
  EXPECT_THAT(fault({}), Names("--run"));
  EXPECT_THAT(fault({"--run", run_.string(), "--png"}), Names("--png", "--plots"));
  EXPECT_THAT(fault({"--run", (run_ / "absent").string()}), Names(run_ / "absent"));
}

}  // namespace
}  // namespace allot::app
