#include "app/scoring/lm_eval_files.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <string>

#include "app/cli/version.h"
#include "base/ascii.h"
#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "evaluation/accuracy.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kIndent = 2;  // of the harness's JSON, whose text its hashes are of

std::string file_name_of(const std::string& text) {
  std::string name = text;
  for (char& c : name)
    if (!is_letter(c) && !is_digit(c) && c != '-' && c != '_' && c != '.') c = '_';
  return name;
}

std::string text_of(const Json& json, int indent = -1) {
  // A reply may end within a character.
  return json.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// The name that the harness gives the measure: whether the likeliest choice is right, or the answer found.
const char* metric_of(const ScoringPlan& plan) {
  return plan.task->continuations().empty() ? "exact_match" : "acc";
}

Json sample(const ScoringPlan& plan, const evaluation::Question& question,
            std::span<const evaluation::Answer* const> repeats) {
  Json doc = {{"question", question.text}};
  for (const auto& [field, text] : question.fields) doc[field] = text;
  const std::string prompt = plan.task->prompt(question);
  Json arguments = Json::object(), replies = Json::array(), found = Json::array();
  double score = 0;
  for (const evaluation::Answer* answer : repeats) {
    replies.push_back(answer->reply);
    found.push_back(answer->answer ? Json(*answer->answer) : Json(""));
    score += answer->score / static_cast<double>(repeats.size());
  }
  arguments["gen_args_0"] = {{"arg_0", prompt}, {"arg_1", Json::object()}};
  const char* metric = metric_of(plan);
  return {{"doc_id", question.id},
          {"doc", doc},
          {"target", question.answer},
          {"arguments", std::move(arguments)},
          {"resps", Json::array({std::move(replies)})},
          {"filtered_resps", std::move(found)},
          {"filter", "none"},
          {"metrics", Json::array({metric})},
          {"doc_hash", sha256_hex(text_of(doc, kIndent))},
          {"prompt_hash", sha256_hex(prompt)},
          {"target_hash", sha256_hex(question.answer)},
          {metric, score}};
}

Json results(const ScoringPlan& plan, const Score& score) {
  const std::string& task = plan.conditions.task.name;
  const std::string metric = metric_of(plan);
  const evaluation::Accuracy accuracy = evaluation::accuracy_of(score.scores);
  const auto of_task = [&](Json value) { return Json{{task, std::move(value)}}; };
  Json model_args = {{"pretrained", plan.options.model.string()}, {"schedule", score.schedule.label}};
  model_args["samples"] =
      score.schedule.schedule ? evaluation::samples_json(score.schedule.schedule->samples) : Json();
  return {
      {"results", of_task({{"name", task},
                           {"alias", task},
                           {"sample_len", plan.questions()},
                           {metric + ",none", accuracy.value},
                           {metric + "_stderr,none", evaluation::standard_error(score.scores)}})},
      {"group_subtasks", of_task(Json::array())},
      {"configs", of_task({{"task", task},
                           {"output_type", metric == "acc" ? "multiple_choice" : "generate_until"},
                           {"repeats", plan.options.repeats},
                           {"num_fewshot", 0}})},
      {"versions", of_task(plan.conditions.task.version)},
      {"n-shot", of_task(0)},
      {"higher_is_better", of_task({{metric, true}})},
      {"n-samples", of_task({{"original", plan.dataset.questions.size()}, {"effective", plan.questions()}})},
      {"config",
       {{"model", std::string("allot ") + version()},
        {"model_args", std::move(model_args)},
        {"conditions", evaluation::to_json(plan.conditions)}}},
      {"model_source", "allot"},
      {"model_name", plan.options.model.string()},
      {"model_name_sanitized", file_name_of(plan.options.model.string())}};
}

}  // namespace

void write_lm_eval_files(const std::filesystem::path& directory, const ScoringPlan& plan, const Score& score,
                         std::span<const evaluation::Answer> answers) {
  const auto now = std::chrono::time_point_cast<std::chrono::microseconds>(std::chrono::system_clock::now());
  // Colons, which some file systems do not take, are hyphens in the harness's names, too.
  const std::string time = fmt::format("{:%Y-%m-%dT%H-%M-%S}", now);
  std::map<uint32_t, std::vector<const evaluation::Answer*>> questions;
  for (const evaluation::Answer& answer : answers) questions[answer.key.question].push_back(&answer);
  std::string samples;
  for (const auto& [question, repeats] : questions)
    samples += text_of(sample(plan, plan.dataset.questions.at(question), repeats)) + "\n";
  const std::filesystem::path folder = directory / file_name_of(score.schedule.label);
  write_file_atomically(folder / fmt::format("results_{}.json", time),
                        text_of(results(plan, score), kIndent) + "\n");
  write_file_atomically(folder / fmt::format("samples_{}_{}.jsonl", plan.conditions.task.name, time),
                        samples);
}

}  // namespace allot::app
