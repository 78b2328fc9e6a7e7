#include "app/scoring/fidelity_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string_view>

#include "app/run/generation_options.h"
#include "app/run/grader_option.h"
#include "app/run/model_options.h"
#include "base/ascii.h"
#include "base/device.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "evaluation/task.h"
#include "model/chat_template.h"
#include "model/storage_formats.h"
#include "worker/prompt_room.h"

namespace allot::app {
namespace {

constexpr int64_t kTextTokens = 512;  // of a piece, unless told

int32_t parse_samples(std::string_view entry) {
  int32_t samples = 0;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), samples);
  if (error != std::errc{} || end != entry.data() + entry.size() || samples < 0)
    throw UsageError(fmt::format(
        "--samples: \"{}\" is no number of samples; expected numbers >= 0 separated by commas, as in 4,8,16",
        entry));
  return samples;
}

std::vector<NamedSchedule> schedules_of(const FidelityPlanOptions& options,
                                        const model::ModelIdentity& model) {
  const std::filesystem::path& directory = options.model;
  std::vector<NamedSchedule> schedules;
  if (!options.samples.empty()) {
    for (const std::string_view entry : entries_of(options.samples))
      schedules.push_back(
          parse_schedule_argument(fmt::format("uniform:{}", parse_samples(entry)), model, directory));
  }
  for (const std::string& argument : options.schedules) {
    schedules.push_back(parse_schedule_argument(argument, model, directory));
    if (!schedules.back().schedule)
      throw UsageError(
          "--schedule dense is what the others are measured against; give uniform:N, a list or a schedule.json");
  }
  return schedules;
}

std::vector<kernels::CacheFormats> simulated_caches_of(const FidelityPlanOptions& options, int32_t head_dim) {
  std::vector<kernels::CacheFormats> caches;
  if (options.simulated_caches.empty()) return caches;
  for (const std::string_view entry : entries_of(options.simulated_caches)) {
    const kernels::CacheFormats formats = kernels::parse_cache_formats(entry);
    if (!formats.any())
      throw UsageError(fmt::format(
          "--simulate-cache {} is the cache as it is, which is measured without the option, too", entry));
    model::require_simulation(formats, head_dim, parse_device(options.device));
    caches.push_back(formats);
  }
  return caches;
}

// The text file's pieces; with a prompt as long as asked for.
void add_text(const model::Tokenizer& tokenizer, FidelityPlan* plan) {
  const FidelityPlanOptions& options = plan->options;
  const std::string content = read_file(options.text);
  const int64_t prompt_tokens = *options.prompt_tokens;
  for (std::vector<int32_t>& ids : pieces_of(tokenizer.encode(content), *options.tokens)) {
    if (prompt_tokens > std::ssize(ids))
      throw UsageError(fmt::format("--prompt-tokens is {}, but a text of {} has {} tokens", prompt_tokens,
                                   options.text.string(), ids.size()));
    plan->texts.push_back({.ids = std::move(ids),
                           .prompt_tokens = static_cast<int32_t>(prompt_tokens),
                           .question = static_cast<uint32_t>(plan->texts.size())});
  }
  plan->conditions.measured_on = {.sha256 = sha256_hex(content), .questions = 0, .fields = {}};
  for (const char* field : {"name", "version", "prompt_style"})
    plan->conditions.unknown.insert(std::string("task.") + field);
}

// Questions as prompts, their solutions behind them as generation would have put them.
void add_questions(const model::Tokenizer& tokenizer, FidelityPlan* plan) {
  FidelityPlanOptions& options = plan->options;
  const std::string definition = evaluation::read_task_definition(options.task);
  if (options.prompt_style == "auto" && definition.empty())
    options.prompt_style = std::string(name(usual_prompt_style(tokenizer)));
  const auto task = evaluation::make_task({options.task, options.prompt_style, definition});
  const evaluation::Dataset dataset = task->load(options.data, options.fields);
  plan->conditions.task = evaluation::identity_of(*task, options.prompt_style);
  const model::PromptEncoder encoder(
      tokenizer,
      evaluation::asks_by_message(plan->conditions.task.prompt_style) ? model::PromptForm::kMessage
                                                                      : model::PromptForm::kText,
      /*system=*/"",
      worker::prompt_room(options.model, task->middle_cut(), task->generation_defaults().max_new_tokens));
  for (const evaluation::Question& question : dataset.questions) {
    FidelityItem item{.ids = encoder.encode(tokenizer, task->prompt(question)), .question = question.id};
    item.prompt_tokens = static_cast<int32_t>(item.ids.size());
    const std::vector<int32_t> solution = tokenizer.encode(question.solution, false);
    item.ids.insert(item.ids.end(), solution.begin(), solution.end());
    if (options.tokens && std::ssize(item.ids) > *options.tokens) {
      item.ids.resize(static_cast<size_t>(*options.tokens));
      item.prompt_tokens = std::min(item.prompt_tokens, static_cast<int32_t>(*options.tokens));
    }
    plan->texts.push_back(std::move(item));
  }
  plan->conditions.measured_on = {.sha256 = dataset.sha256, .questions = 0, .fields = dataset.fields};
}

}  // namespace

void declare_text_options(OptionSet* set, FidelityPlanOptions* options) {
  constexpr int64_t kMany = 1'000'000'000;
  std::vector<std::string> styles = evaluation::prompt_style_names();
  styles.insert(styles.begin(), "auto");
  declare_model_option(
      set, &options->model,
      "Hugging Face model: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(set, &options->adapter);
  set->path("text", &options->text, "text file, cut into texts of --tokens tokens");
  declare_data_options(set, &options->data, &options->fields,
                       "questions, of which each with its solution is a text");
  declare_task_option(set, &options->task, "how questions are asked");
  set->choice("prompt-style", &options->prompt_style, styles,
              "prompt style; auto takes the schedule file's, else the one that fits the model's chat "
              "template");
  set->integer("limit", &options->limit, 0, kMany, "N", "measure the first N texts; 0 for all");
  set->integer("tokens", &options->tokens, 1, kMany, "N",
               "tokens of a text; 512 of a text file, all of a question and its solution");
  set->choice("mode", &options->mode, {"prefill", "decode", "reply"},
              "prefill samples every position and measures all; reply samples every position and measures "
              "from the prompt's last token on; decode measures these, too, and keeps the prompt exact");
  set->integer("prompt-tokens", &options->prompt_tokens, 1, kMany, "N",
               "tokens of a text of --text that are its prompt in modes decode and reply; default 1");
  set->choice("dtype", &options->dtype, {"bfloat16", "float32", "float16"},
              "weights, activations and KV cache");
  declare_weights_option(set, &options->weights);
  declare_keys_option(set, &options->keys);
  set->integer("seed", &options->seed, 0, std::numeric_limits<uint32_t>::max(), "N",
               "seed of all random draws");
  set->device(&options->device);
  set->integer("threads", &options->threads, 0, 4096, "N", "threads of the model; 0 takes all cores");
  set->integer("prefill-chunk", &options->prefill_chunk, 2, 1 << 20, "N",
               "tokens of a forward pass; 2048 on the CPU and 8192 on a GPU without it");
  set->require("model");
}

void declare_fidelity_options(OptionSet* set, FidelityPlanOptions* options) {
  declare_text_options(set, options);
  set->text("estimator", &options->estimators, "NAME,…", kernels::estimators_help(true).c_str());
  set->suggest("estimator", kernels::estimator_names(true));
  set->text("samples", &options->samples, "N,…",
            "samples of every layer, or value rows with --unit rows; 4,8,16,32 without this and --schedule");
  set->texts("schedule", &options->schedules, "SCHEDULE",
             "uniform:N, exact:K+uniform:N (the first K layers exact), a,b,c,… (numbers or exact) or a "
             "schedule.json; may be given several times");
  set->text(
      "simulate-cache", &options->simulated_caches, "KEYS[/VALUES],…",
      fmt::format("also measure exact attention and every row with keys and values rounded to what a "
                  "cache of these formats keeps ({}; values alone: dtype/int8), against exact attention "
                  "over the cache as it is: a simulation of quality, on the CPU only",
                  fmt::join(kernels::cache_format_names(), ", "))
          .c_str());
  set->suggest("simulate-cache", kernels::cache_format_names());
  declare_estimator_settings(set, &options->attention);
  declare_score_options(set, &options->attention);
}

std::vector<std::vector<int32_t>> pieces_of(const std::vector<int32_t>& ids, int64_t tokens) {
  const int64_t size = std::ssize(ids);
  std::vector<std::vector<int32_t>> pieces;
  for (int64_t begin = 0; begin + tokens <= size; begin += tokens)
    pieces.emplace_back(ids.begin() + begin, ids.begin() + begin + tokens);
  if (pieces.empty() && size > 0) pieces.push_back(ids);
  return pieces;
}

kernels::Prefill prefill_of(const FidelityPlanOptions& options) {
  return options.mode == "decode" ? kernels::Prefill::kDense : kernels::Prefill::kSampled;
}

void add_texts(FidelityPlanOptions* options, FidelityPlan* plan) {
  if (options->text.empty() == options->data.empty())
    throw UsageError("give --text FILE or --data FILE, one of the two");
  if (options->prompt_tokens && options->text.empty())
    throw UsageError("--prompt-tokens goes with --text; a question of --data is the prompt of its solution");
  if (!kernels::has_consistent_scores(options->attention))
    throw UsageError(
        fmt::format("--score-stage {} with --score-budget {}; the Bernoulli stages need a budget, "
                    "the exact stage has none",
                    kernels::name(options->attention.score_stage), options->attention.score_budget));

  if (!options->text.empty()) {
    options->tokens = options->tokens.value_or(kTextTokens);
    options->prompt_tokens = options->prompt_tokens.value_or(1);
  }
  plan->options = *options;
  const model::Tokenizer tokenizer = model::Tokenizer::load(options->model);
  if (options->text.empty()) {
    add_questions(tokenizer, plan);
  } else {
    add_text(tokenizer, plan);
  }
  const int64_t texts = std::ssize(plan->texts);
  const std::filesystem::path& source = options->text.empty() ? options->data : options->text;
  if (texts == 0) throw UsageError(fmt::format("{} holds no tokens", source.string()));
  if (options->limit > texts)
    throw UsageError(
        fmt::format("--limit {} is more than the {} texts of {}", options->limit, texts, source.string()));
  if (options->limit > 0) plan->texts.resize(static_cast<size_t>(options->limit));
  plan->conditions.measured_on->questions = std::ssize(plan->texts);
  plan->conditions.generation.dtype = kernels::parse_dtype(options->dtype);
  plan->conditions.generation.weights = model::parse_weight_storage(options->weights);
  plan->conditions.generation.keys = kernels::parse_key_format(options->keys);
  model::require_formats(plan->conditions.generation.weights, plan->conditions.generation.keys,
                         parse_device(options->device));
  for (const char* field : {"temperature", "top_p", "repetition_penalty", "max_new_tokens", "stop"})
    plan->conditions.unknown.insert(std::string("generation.") + field);
  plan->conditions.seed = static_cast<uint32_t>(options->seed);
  *options = plan->options;
}

FidelityPlan plan_fidelity(FidelityPlanOptions* options, OptionSet* set) {
  FidelityPlan plan;
  if (std::ranges::find(options->schedules, kOwnSchedule) == options->schedules.end())
    note_unread_schedule(options->model,
                         fmt::format("allot analyze --schedule {} measures it", kOwnSchedule));
  plan.conditions.model = model::identify_model(options->model, {.adapter = options->adapter});
  if (options->samples.empty() && options->schedules.empty()) options->samples = "4,8,16,32";
  const std::vector<NamedSchedule> schedules = schedules_of(*options, plan.conditions.model);
  std::vector<ConditionsSource> sources;
  for (const NamedSchedule& schedule : schedules)
    if (schedule.file) sources.push_back({schedule.label, schedule.file->conditions});
  adopt(sources, set);
  add_texts(options, &plan);

  for (const std::string_view name : entries_of(options->estimators)) {
    kernels::AttentionMethod method = options->attention;
    method.estimator = kernels::parse_estimator(name);
    kernels::keep_own_parameters(&method);
    check_unit(method);
    method.prefill = prefill_of(*options);
    for (const NamedSchedule& schedule : schedules) plan.cases.push_back({method, schedule});
  }
  plan.simulated_caches = simulated_caches_of(*options, plan.conditions.model.head_dim);
  plan.conditions.attention = plan.cases.front().method;
  return plan;
}

std::string describe(const FidelityPlan& plan) {
  const FidelityPlanOptions& options = plan.options;
  const std::string texts =
      options.text.empty()
          ? fmt::format("{} questions of {} with their solutions ({} version {}, {} prompts)",
                        plan.texts.size(), options.data.string(), plan.conditions.task.name,
                        plan.conditions.task.version, plan.conditions.task.prompt_style)
          : fmt::format("{} texts of {}", plan.texts.size(), options.text.string());
  const std::string dtype =
      options.weights == "dtype" ? options.dtype : options.dtype + ", weights " + options.weights;
  const bool usual_keys = plan.conditions.generation.keys == kernels::KeyFormat::kSixteenBits;
  return fmt::format("conditions: {}; {}{}; mode {}; scores {}; seed {}; on {}\n", texts, dtype,
                     usual_keys ? "" : ", keys " + options.keys, options.mode,
                     kernels::describe_scores(options.attention), options.seed, options.device) +
         unit_line(options.attention, plan.conditions.model);
}

}  // namespace allot::app
