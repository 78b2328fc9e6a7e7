#include "tests/app/report/example_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "base/philox.h"
#include "policy/schedule.h"

namespace allot::app {
namespace {

constexpr Timestamp kStart{std::chrono::milliseconds(1'760'000'000'000)};

double draw(uint32_t row, uint32_t number) {
  return draw_uniform({.key = {.run_seed = 7, .sampling_seed = 0}, .question = row}, number);
}

wire::RunSpec example_spec(const ExampleShape& shape) {
  wire::RunSpec spec;
  spec.set_schema_version(1);
  spec.set_run_id("2026-11-20-example");
  spec.set_model_path("assets/tiny-gsm");
  wire::ModelIdentity& model = *spec.mutable_model();
  model.set_id("tiny-gsm");
  model.set_config_sha256(std::string(64, 'a'));
  model.set_tokenizer_sha256(std::string(64, 'b'));
  model.set_weights_fingerprint(std::string(64, 'c'));
  model.set_layers(shape.layers);
  model.set_num_q_heads(8);
  model.set_num_kv_heads(4);
  model.set_head_dim(32);
  wire::TaskSpec& task = *spec.mutable_task();
  task.set_name("gsm8k");
  task.set_version(1);
  task.set_prompt_style("plain");
  task.mutable_train()->set_path("data/train.jsonl");
  task.mutable_train()->set_sha256(std::string(64, 'd'));
  task.mutable_train()->set_questions(20000);
  task.mutable_heldout()->set_path("data/heldout.jsonl");
  task.mutable_heldout()->set_sha256(std::string(64, 'e'));
  task.mutable_heldout()->set_questions(2000);
  task.set_heldout_questions(shape.questions);
  wire::AttentionSpec& attention = *spec.mutable_attention();
  attention.set_estimator("sys");
  attention.set_prefill("sampled");
  attention.set_tile(256);
  attention.set_score_stage("exact");
  wire::GenerationSpec& generation = *spec.mutable_generation();
  generation.set_dtype("bfloat16");
  generation.set_top_p(1);
  generation.set_repetition_penalty(1);
  generation.set_max_new_tokens(96);
  wire::PolicySpec& policy = *spec.mutable_policy();
  policy.set_name("pairs");
  policy.set_total(shape.total);
  policy.set_floor(1);
  policy.set_max_policy_lag(50);
  auto& parameters = *policy.mutable_parameters();
  parameters["pairs_per_update"] = shape.episodes_per_update / 2;
  parameters["perturbation"] = 1.5;
  parameters["gain"] = 16;
  parameters["gain_offset"] = 10;
  parameters["gain_decay"] = 0.602;
  spec.set_seed(42);
  spec.set_episodes(shape.episodes);
  spec.set_questions_per_episode(16);
  return spec;
}

// Shares after a part `progress` of the learning: layer 0 gains, every third layer loses little, the rest
// lose more.
std::vector<double> shares_at(int layers, double progress) {
  std::vector<double> shares;
  double sum = 0;
  for (int layer = 0; layer < layers; ++layer) {
    const double goal =
        layer == 0 ? 2.6 : (layer % 3 == 1 ? 0.4 : -0.9) + 0.5 * (draw(9000, uint32_t(layer)) - 0.5);
    shares.push_back(std::exp(goal * progress));
    sum += shares.back();
  }
  for (double& share : shares) share /= sum;
  return shares;
}

aggregator::ScoreRow score(const std::string& label, const ExampleShape& shape, double accuracy,
                           uint32_t row) {
  aggregator::ScoreRow score{.label = label, .samples = {}, .questions = {}, .scores = {}};
  for (uint32_t question = 0; question < shape.questions; ++question) {
    score.questions.push_back(question);
    score.scores.push_back(draw(row, question) < accuracy ? 1 : 0);
  }
  return score;
}

}  // namespace

aggregator::RunData example_run(const ExampleShape& shape) {
  aggregator::RunData run;
  run.spec = example_spec(shape);
  run.episodes_wanted = run.spec.episodes();
  run.stage = "finished";
  const int updates = shape.episodes / shape.episodes_per_update;
  const auto version_at = [&](int64_t version, Timestamp at) {
    const double progress = 1 - std::exp(-4.0 * static_cast<double>(version) / std::max(1, updates));
    aggregator::VersionRow row;
    row.version = version;
    row.at = at;
    row.described = policy::describe_shares(shares_at(shape.layers, progress));
    row.recommended = policy::apportion(row.described.per_layer, shape.total, 1).samples;
    return row;
  };
  run.versions.push_back(version_at(0, kStart));
  for (int i = 0; i < shape.episodes; ++i) {
    const double progress = 1 - std::exp(-4.0 * i / shape.episodes);
    const double reward = 0.15 + 0.65 * progress + 0.35 * (draw(1, uint32_t(i)) - 0.5);
    const aggregator::LearnedEpisode episode{.finished = kStart + std::chrono::milliseconds(500 * (i + 1)),
                                             .reward = std::round(16 * std::clamp(reward, 0.0, 1.0)) / 16};
    run.learned.push_back(episode);
    if ((i + 1) % shape.episodes_per_update == 0) {
      run.versions.push_back(version_at(run.versions.back().version + 1, episode.finished));
    }
  }
  run.recommended = run.versions.back().recommended;
  run.policy_version = run.versions.back().version;
  run.scores = {score("uniform", shape, 0.14, 2), score("learned", shape, 0.965, 3),
                score("dense", shape, 0.997, 4)};
  run.counters.set_granted(shape.episodes + 14);
  run.counters.set_accepted(shape.episodes + 9);
  run.counters.set_expired(2);
  run.counters.set_late(1);
  run.counters.set_released(3);
  run.elapsed_s = 83.4;
  return run;
}

}  // namespace allot::app
