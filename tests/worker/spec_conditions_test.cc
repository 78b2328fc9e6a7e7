#include "worker/spec_conditions.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::worker {
namespace {

wire::RunSpec example() {
  wire::RunSpec spec;
  auto& model = *spec.mutable_model();
  model.set_id("tiny");
  model.set_config_sha256("config");
  model.set_tokenizer_sha256("tokenizer");
  model.set_weights_fingerprint("weights");
  model.set_layers(4);
  model.set_num_q_heads(8);
  model.set_num_kv_heads(2);
  model.set_head_dim(32);
  auto& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.set_version(3);
  task.set_prompt_style("llama-chat");
  task.mutable_train()->set_sha256("train");
  task.mutable_train()->set_questions(2000);
  task.mutable_heldout()->set_sha256("heldout");
  task.mutable_heldout()->set_questions(1000);
  task.set_heldout_questions(512);
  auto& attention = *spec.mutable_attention();
  attention.set_estimator("flash");
  attention.set_prefill("dense");
  attention.set_tile(64);
  attention.set_score_stage("bernoulli");
  attention.set_score_budget(4);
  attention.set_mean_group_query(true);
  auto& generation = *spec.mutable_generation();
  generation.set_dtype("float32");
  generation.set_temperature(0.5);
  generation.set_top_p(0.75);
  generation.set_repetition_penalty(1.5);
  generation.set_max_new_tokens(48);
  spec.set_seed(9);
  return spec;
}

TEST(ConditionsOf, ARunAreThoseOfItsSpec) {
  evaluation::Conditions expected;
  expected.model = {.id = "tiny",
                    .config_sha256 = "config",
                    .tokenizer_sha256 = "tokenizer",
                    .weights_fingerprint = "weights",
                    .layers = 4,
                    .num_q_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 32};
  expected.task = {.name = "gsm8k", .version = 3, .prompt_style = "llama-chat"};
  expected.learned_on = {.sha256 = "train", .questions = 2000};
  expected.measured_on = {.sha256 = "heldout", .questions = 512};
  expected.attention = {.estimator = kernels::Estimator::kFlash,
                        .prefill = kernels::Prefill::kDense,
                        .tile = 64,
                        .score_stage = kernels::ScoreStage::kBernoulli,
                        .score_budget = 4,
                        .mean_group_query = true};
  // Table 23's replies end with the model's end token.
  expected.generation = {.dtype = kernels::DType::kFloat32,
                         .temperature = 0.5,
                         .top_p = 0.75,
                         .repetition_penalty = 1.5,
                         .max_new_tokens = 48,
                         .stop = evaluation::StopRule::kEos};
  expected.seed = 9;
  EXPECT_EQ(conditions_of(example()), expected);
  wire::RunSpec eight_bits = example();
  eight_bits.mutable_generation()->set_weights("fp8");
  eight_bits.mutable_generation()->set_keys("split");
  expected.generation.weights = model::WeightStorage::kFp8;
  expected.generation.keys = kernels::KeyFormat::kSplit;
  EXPECT_EQ(conditions_of(eight_bits), expected);
  wire::RunSpec spec = example();
  spec.mutable_task()->set_heldout_questions(0);
  spec.mutable_task()->set_prompt_style("plain");
  EXPECT_FALSE(conditions_of(spec).measured_on);
  EXPECT_EQ(conditions_of(spec).generation.stop, evaluation::StopRule::kAnswer);
}

TEST(ConditionsOf, ARunWithAnAdapterNameIt) {
  wire::RunSpec spec = example();
  EXPECT_FALSE(conditions_of(spec).model.adapter);
  spec.mutable_model()->mutable_adapter()->set_id("lora");
  spec.mutable_model()->mutable_adapter()->set_fingerprint("ab");
  spec.mutable_model()->mutable_adapter()->set_path("/models/lora");
  EXPECT_EQ(conditions_of(spec).model.adapter, (model::AdapterIdentity{.id = "lora", .fingerprint = "ab"}));
}

TEST(ConditionsOf, NamesThatAreUnknownAreRefused) {
  wire::RunSpec spec = example();
  spec.mutable_generation()->set_dtype("int4");
  EXPECT_THROW((void)conditions_of(spec), InvalidArgument);
  spec = example();
  spec.mutable_task()->set_name("mmlu");
  EXPECT_THROW((void)conditions_of(spec), InvalidArgument);
}

}  // namespace
}  // namespace allot::worker
