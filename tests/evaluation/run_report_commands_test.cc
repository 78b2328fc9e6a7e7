// ablate and verify with --run: what they measure for a run's report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/ablation.h"
#include "evaluation/frontier.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// Of a run whose replies are short.
wire::RunSpec example_spec() {
  wire::RunSpec spec;
  const model::ModelIdentity model = model::identify_model(kModel);
  spec.mutable_model()->set_id(model.id);
  spec.mutable_model()->set_config_sha256(model.config_sha256);
  spec.mutable_model()->set_tokenizer_sha256(model.tokenizer_sha256);
  spec.mutable_model()->set_weights_fingerprint(model.weights_fingerprint);
  spec.mutable_model()->set_layers(model.layers);
  spec.mutable_model()->set_num_q_heads(model.num_q_heads);
  spec.mutable_model()->set_num_kv_heads(model.num_kv_heads);
  spec.mutable_model()->set_head_dim(model.head_dim);
  auto& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.set_version(1);
  task.set_prompt_style("plain");
  task.mutable_heldout()->set_sha256(sha256_file(kData));
  task.set_heldout_questions(100);
  auto& attention = *spec.mutable_attention();
  attention.set_estimator("iid");
  attention.set_prefill("dense");
  attention.set_tile(32);
  attention.set_score_stage("exact");
  auto& generation = *spec.mutable_generation();
  generation.set_dtype("float32");
  generation.set_top_p(1);
  generation.set_repetition_penalty(1);
  generation.set_max_new_tokens(12);
  return spec;
}

TEST(AblateCommand, TakesTheConditionsOfTheRunWhoseReportIsToShowIt) {
  const std::filesystem::path folder = fresh_directory();
  write_file_atomically(folder / "spec.json", wire::to_json(example_spec()));

  const CommandResult refused = run("ablate", {"--run", folder, "--limit", "2", "--max-new-tokens", "13"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names("generation.max_new_tokens", 13, 12));
  const CommandResult done = run("ablate", {"--run", folder, "--limit", "2"});
  ASSERT_EQ(done.code, 0) << done.err;
  const evaluation::Conditions conditions = evaluation::read_ablation(folder / "ablation.json").conditions;
  EXPECT_EQ(conditions.attention.estimator, kernels::Estimator::kIid);
  EXPECT_EQ(conditions.attention.tile, 32);
  EXPECT_EQ(conditions.generation.dtype, kernels::DType::kFloat32);
  EXPECT_EQ(conditions.generation.max_new_tokens, 12);
}

TEST(VerifyCommand, MeasuresTheTotalsOfARunForItsReport) {
  const std::filesystem::path folder = fresh_directory();
  wire::RunSpec spec = example_spec();
  spec.set_run_id("r-1");
  write_file_atomically(folder / "spec.json", wire::to_json(spec));
  ScheduleFile file;
  file.conditions.model = model::identify_model(kModel);
  file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  file.conditions.attention = {
      .estimator = kernels::Estimator::kIid, .prefill = kernels::Prefill::kDense, .tile = 32};
  file.conditions.generation.dtype = kernels::DType::kFloat32;
  file.conditions.generation.max_new_tokens = 12;
  file.schedule.samples = {36, 4, 4, 4, 4, 4, 4, 4};
  file.total = 64;
  file.costs = policy::shares_of(file.schedule, file.floor);
  file.run_id = "r-1";
  file.tool_version = "0.1.0";
  write_schedule_file(folder / "schedule.json", file);

  const Words words = {"--run", folder, "--total", "16,64", "--limit", "2"};
  const CommandResult done = run("verify", words);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(Names(16, 64, "uniform", "learned", "dense"), HasSubstr("the total of the run")));
  const evaluation::Frontier frontier = evaluation::read_frontier(folder / "frontier.json");
  EXPECT_EQ(frontier.run_id, "r-1");
  EXPECT_EQ(frontier.conditions.attention.tile, 32);
  EXPECT_EQ(frontier.points.at(1).learned_schedule, file.schedule);

  Words longer = words;
  longer.insert(longer.end(), {"--max-new-tokens", "13"});
  const CommandResult other = run("verify", longer);
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("generation.max_new_tokens", 13, 12));
  // Without a report to belong to, what differs from the schedule's conditions is named in the result.
  const Words base = {"--limit", "2", "--max-new-tokens", "13", "--json"};
  const std::string schedule = folder / "schedule.json";
  for (const auto& [command, more] : {std::pair<const char*, Words>{"ablate", {"--base", schedule}},
                                      {"verify", {"--schedule", schedule, "--total", "64"}}}) {
    Words with = base;
    with.insert(with.end(), more.begin(), more.end());
    const CommandResult differing = run(command, with);
    ASSERT_EQ(differing.code, 0) << differing.err;
    const json differences = json::parse(differing.out).at("differences");
    ASSERT_EQ(differences.size(), 1u) << command;
    EXPECT_EQ(differences[0].at("field"), "generation.max_new_tokens");
    EXPECT_EQ(differences[0].at("here"), 13);
    EXPECT_EQ(differences[0].at("schedule"), 12);
  }
  spec.set_run_id("r-2");
  write_file_atomically(folder / "spec.json", wire::to_json(spec));
  const CommandResult another = run("verify", words);
  EXPECT_EQ(another.code, 3);
  EXPECT_THAT(another.err, Names("r-1", "r-2"));
}

TEST(AblateCommand, ADirectoryThatIsNoRunIsRefusedBeforeAnythingIsScored) {
  const CommandResult result = run("ablate", {"--run", fresh_directory()});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, Names("spec.json"));
}

}  // namespace
}  // namespace allot::app
