// analyze fidelity on the embedded model, as people run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "evaluation/task.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;

CommandResult analyze(const Words& more) {
  Words words = {"allot", "analyze", "fidelity", "--model", kModel};
  words.insert(words.end(), more.begin(), more.end());
  return run_command(words);
}

TEST(AnalyzeFidelityCommand, PrintsOneJsonObjectForEveryEstimatorAndBudget) {
  const CommandResult result = analyze({"--data", kData, "--limit", "6", "--estimator", "sys,threshold",
                                        "--samples", "2,16", "--dtype", "float32", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = json_lines(result.out);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[1].at("estimator"), "sys");
  EXPECT_EQ(rows[1].at("samples"), 16);
  EXPECT_EQ(rows[2].at("estimator"), "threshold");
  EXPECT_EQ(rows[2].at("conditions").at("attention").at("estimator"), "threshold");
  EXPECT_EQ(rows[2].at("conditions").at("measured_on").at("questions"), 6);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("texts"), 6);
    EXPECT_EQ(row.at("positions"), row.at("tokens"));
    EXPECT_GT(row.at("divergence_standard_error"), 0);
    EXPECT_GT(row.at("microseconds"), 0);
    EXPECT_GT(row.at("comparison_microseconds"), 0);
    EXPECT_LE(row.at("top1_agreement"), 1);
    EXPECT_TRUE(row.contains("rows_per_kv_head"));
  }
  EXPECT_GT(rows[0].at("divergence"), rows[1].at("divergence"));
  EXPECT_GT(rows[2].at("divergence"), rows[3].at("divergence"));
  EXPECT_LT(rows[0].at("top1_agreement"), rows[1].at("top1_agreement"));
}

TEST(AnalyzeFidelityCommand, MeasuresDecodingFromThePromptsLastTokenOn) {
  const Words words = {"--data", kData, "--limit", "3", "--estimator", "sys", "--samples", "4", "--json"};
  Words decode = words;
  decode.insert(decode.end(), {"--mode", "decode"});
  const json all = json_lines(analyze(words).out).at(0), replies = json_lines(analyze(decode).out).at(0);
  EXPECT_EQ(replies.at("tokens"), all.at("tokens"));
  EXPECT_LT(replies.at("positions"), all.at("positions"));
  EXPECT_EQ(replies.at("conditions").at("attention").at("prefill"), "dense");
}

TEST(AnalyzeFidelityCommand, MeasuresATextAndDrawsPlots) {
  const std::filesystem::path folder = fresh_directory();
  std::string text;
  for (const evaluation::Question& question :
       evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain)->load(kData).questions)
    text += question.text + "\n";
  write_file_atomically(folder / "text", text);
  const CommandResult result =
      analyze({"--text", folder / "text", "--tokens", "100", "--limit", "4", "--estimator", "sys",
               "--schedule", "uniform:3", "--schedule", "9,1,9,1,9,1,9,1", "--out", folder / "plots"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 texts"));
  EXPECT_THAT(result.out, HasSubstr("9,1,9,1,9,1,9,1"));
  EXPECT_THAT(read_file(folder / "plots/fidelity_samples.svg"), HasSubstr("<svg"));
  EXPECT_THAT(read_file(folder / "plots/fidelity_microseconds.svg"), HasSubstr("<svg"));
}

TEST(AnalyzeFidelityCommand, MeasuresEverythingOnceMoreUnderASimulatedCache) {
  const Words words = {"--data",    kData, "--limit",          "4",           "--estimator", "sys",
                       "--samples", "16",  "--simulate-cache", "fp8/fp8,int8"};
  Words as_json = words;
  as_json.emplace_back("--json");
  const CommandResult result = analyze(as_json);
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<json> rows = json_lines(result.out);
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_FALSE(rows[0].contains("simulated_cache"));
  for (const size_t exact : {1u, 3u}) {
    const char* cache = exact == 1 ? "fp8/fp8" : "int8/dtype";
    EXPECT_EQ(rows[exact].at("simulated_cache"), cache);
    EXPECT_EQ(rows[exact].at("estimator"), "exact");
    EXPECT_EQ(rows[exact].at("schedule"), "dense");
    EXPECT_EQ(rows[exact].at("conditions").at("attention").at("estimator"), "exact");
    EXPECT_GT(rows[exact].at("divergence"), 0);
    EXPECT_EQ(rows[exact + 1].at("simulated_cache"), cache);
    EXPECT_EQ(rows[exact + 1].at("estimator"), "sys");
    EXPECT_NE(rows[exact + 1].at("divergence"), rows[0].at("divergence"));
    EXPECT_GT(rows[exact + 1].at("divergence"), rows[exact].at("divergence"));
  }
  EXPECT_GT(rows[0].at("microseconds"), 0);
  EXPECT_TRUE(rows[1].at("microseconds").is_null());
  const std::filesystem::path plots = fresh_directory() / "plots";
  Words plotted = words;
  plotted.insert(plotted.end(), {"--out", plots});
  const CommandResult text = analyze(plotted);
  EXPECT_THAT(text.out, Names("simulated cache", "as it is", "fp8/fp8", "int8/dtype"));
  EXPECT_THAT(read_file(plots / "fidelity_samples.svg"), HasSubstr("<svg"));
  EXPECT_EQ(analyze({"--data", kData, "--limit", "1", "--samples", "4"}).out.find("simulated cache"),
            std::string::npos);
}

TEST(AnalyzeFidelityCommand, RefusesAnAnalysisThatThereIsNot) {
  const CommandResult result = run_command({"allot", "analyze", "variety", "--model", kModel});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("variety", "fidelity"));
}

}  // namespace
}  // namespace allot::app
