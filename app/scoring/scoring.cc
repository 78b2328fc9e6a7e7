#include "app/scoring/scoring.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/view/progress.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "evaluation/method_json.h"
#include "model/tokenizer.h"
#include "worker/engine_generator.h"
#include "worker/model_runner.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

evaluation::PromptStyle style_of(const ScoringOptions& options) {
  if (options.prompt_style != "auto") return evaluation::parse_prompt_style(options.prompt_style);
  return evaluation::prompt_style_for(model::Tokenizer::load(options.model).chat_template());
}

model::EngineOptions engine_options(const ScoringOptions& options, kernels::DType dtype) {
  model::EngineOptions engine;
  engine.dtype = dtype;
  engine.attention = options.attention;
  engine.max_sequences = options.max_sequences;
  engine.device = options.device;
  engine.threads = options.threads;
  return engine;
}

worker::GenerationLimits generation_limits(const evaluation::Generation& generation) {
  return {.sampling = {.temperature = generation.temperature,
                       .top_p = generation.top_p,
                       .repetition_penalty = generation.repetition_penalty},
          .max_new_tokens = generation.max_new_tokens};
}

std::string detail_line(const std::string& schedule, const evaluation::Question& question,
                        const evaluation::Reply& reply, const evaluation::Grade& grade) {
  const Json row = {{"schedule", schedule},
                    {"question", question.id},
                    {"gold", question.answer},
                    {"answer", grade.answer ? Json(*grade.answer) : Json()},
                    {"extracted", grade.extracted},
                    {"correct", grade.score == 1},
                    {"output_tokens", reply.output_tokens},
                    {"reply", reply.text}};
  // A reply may end within a character.
  return row.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// Shows how far a command is: a line redrawn on a terminal, a line every ten seconds elsewhere.
class ProgressLine {
 public:
  ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1), start_(clock_.now()), last_(start_) {}
  ~ProgressLine() {
    if (drawn_) std::fputc('\n', stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(int64_t done, int64_t wanted) {
    const Timestamp now = clock_.now();
    const bool last = done == wanted;
    if (now - last_ < (terminal_ ? Duration(200) : Duration(10'000)) && !(last && terminal_)) return;
    last_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const double left =
        done == 0 ? -1 : elapsed * static_cast<double>(wanted - done) / static_cast<double>(done);
    const std::string line =
        fmt::format("{} of {} answers ({:.0f} %), {} left", done, wanted,
                    100.0 * static_cast<double>(done) / static_cast<double>(wanted), format_seconds(left));
    if (terminal_) {
      std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
      drawn_ = true;
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
    std::fflush(stderr);
  }

 private:
  SystemClock clock_;
  bool terminal_;
  bool drawn_ = false;
  Timestamp start_;
  Timestamp last_;
};

}  // namespace

void declare_scoring_options(OptionSet* set, ScoringOptions* options) {
  constexpr int64_t kMany = 1'000'000'000;
  std::vector<std::string> styles = evaluation::prompt_style_names();
  styles.insert(styles.begin(), "auto");
  set->path("model", &options->model, "Hugging Face model directory");
  set->path("data", &options->data, "questions, JSONL with 'question' and 'answer'");
  set->choice("task", &options->task, evaluation::task_names(), "how questions are asked and answers graded");
  set->choice("prompt-style", &options->prompt_style, styles,
              "how a question is put; auto goes by the model's chat template");
  set->integer("limit", &options->limit, 0, kMany, "N", "score the first N questions; 0 for all");
  declare_attention_options(set, &options->attention, EstimatorChoice::kAny);
  declare_generation_options(set, &options->generation, options->task);
  set->integer("seed", &options->seed, 0, std::numeric_limits<uint32_t>::max(), "N", "of every random draw");
  set->device(&options->device);
  set->integer("threads", &options->threads, 0, 4096, "N", "threads of the model; 0 takes all cores");
  set->integer("max-sequences", &options->max_sequences, 1, 65536, "N", "replies decoded together");
  set->path("details", &options->details, "write every reply and its verdict to this JSONL file");
  set->require("model");
  set->require("data");
}

NamedSchedule parse_schedule_argument(const std::string& text, const model::ModelIdentity& model) {
  constexpr std::string_view kUniform = "uniform:";
  NamedSchedule named{.label = text, .schedule = std::nullopt, .file = std::nullopt};
  if (text == "dense") return named;
  if (text.starts_with(kUniform)) {
    const std::string_view number = std::string_view(text).substr(kUniform.size());
    int32_t samples = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), samples);
    if (error != std::errc{} || end != number.data() + number.size() || samples < 0)
      throw InvalidArgument(fmt::format(
          "schedule \"{}\": uniform:N takes one number >= 0, the samples of every layer, as in uniform:8",
          text));
    named.schedule = policy::uniform_schedule(model.layers, samples);
  } else if (text.find_first_not_of("0123456789,- ") == std::string::npos) {
    named.schedule = policy::parse_schedule(text);
  } else {
    if (!std::filesystem::exists(text))
      throw NotFound(fmt::format(
          "schedule \"{}\" is neither dense, uniform:N, a list a,b,c,… nor a file that exists", text));
    named.file = read_schedule_file(text);
    check_matches(*named.file, model);
    named.schedule = named.file->schedule;
  }
  policy::check_schedule(*named.schedule, model.layers, /*floor=*/0);
  return named;
}

NamedSchedule even_spread(const NamedSchedule& schedule) {
  if (!schedule.schedule)
    throw UsageError("dense attention has no total to spread evenly; name the schedule to compare it with");
  const std::vector<double> shares(schedule.schedule->samples.size(), 1.0);
  return {.label = "uniform",
          .schedule = policy::apportion(shares, schedule.schedule->total(), /*floor=*/0),
          .file = std::nullopt};
}

Scoring::Scoring(const ScoringOptions& options, const OptionSet& set)
    : options_(options),
      set_(set),
      model_(model::identify_model(options.model)),
      style_(style_of(options)),
      task_(evaluation::make_task(options.task, style_)),
      dataset_(task_->load(options.data)),
      generation_(resolve(options.generation, *task_)) {
  if (options_.limit > std::ssize(dataset_.questions))
    throw UsageError(fmt::format("--limit {} is more than the {} questions of {}", options_.limit,
                                 dataset_.questions.size(), options_.data.string()));
  questions_ = static_cast<uint32_t>(options_.limit > 0 ? options_.limit : std::ssize(dataset_.questions));
}

Scoring::~Scoring() = default;

std::vector<NamedSchedule> Scoring::schedules(std::span<const std::string> arguments) {
  std::vector<NamedSchedule> schedules;
  for (const std::string& argument : arguments) {
    schedules.push_back(parse_schedule_argument(argument, model_));
    if (const auto& file = schedules.back().file) adopt(file->attention, argument);
  }
  return schedules;
}

void Scoring::adopt(const kernels::AttentionMethod& attention, const std::string& source) {
  if (attention_given(set_)) return;
  if (!attention_source_.empty() && options_.attention != attention)
    throw Mismatch(fmt::format(
        "{} and {} were learned with different attention settings; set --estimator, --prefill and the "
        "like to score both under the same",
        attention_source_, source));
  attention_source_ = source;
  options_.attention = attention;
}

std::vector<Score> Scoring::run(std::span<const NamedSchedule> schedules) {
  const SystemClock clock;
  worker::ModelRunner runner(
      std::make_unique<worker::EngineGenerator>(options_.model, engine_options(options_, generation_.dtype),
                                                generation_limits(generation_)),
      evaluation::make_task(options_.task, style_), {.train = dataset_.questions, .heldout = {}},
      {.run_seed = static_cast<uint32_t>(options_.seed),
       .questions_per_episode = static_cast<int32_t>(worker::kQuestionsPerScoringEpisode)},
      clock);
  // By schedule and question, so that the file's order is not that of the answers' arrival.
  std::map<std::pair<size_t, uint32_t>, std::string> details;
  if (!options_.details.empty())
    runner.observe([&](const Episode& episode, size_t place, const evaluation::Reply& reply,
                       const evaluation::Grade& grade) {
      const size_t schedule = worker::scored_schedule(episode.id, questions_);
      const evaluation::Question& question = dataset_.questions[episode.questions[place]];
      details[{schedule, question.id}] = detail_line(schedules[schedule].label, question, reply, grade);
    });

  std::vector<std::vector<int32_t>> samples;
  for (const NamedSchedule& schedule : schedules)
    samples.push_back(schedule.schedule ? schedule.schedule->samples : std::vector<int32_t>{});
  const auto& stop = watch_stop_signals();
  const Timestamp start = clock.now();
  ProgressLine line;
  std::vector<worker::ScheduleScore> answers = worker::score_schedules(
      &runner, samples, questions_,
      {.progress = [&](int64_t answered, int64_t wanted) { line.update(answered, wanted); },
       .stop_asked = [&] { return stop.load(); }});
  seconds_ = std::chrono::duration<double>(clock.now() - start).count();

  if (!options_.details.empty()) {
    std::string text;
    for (const auto& [place, row] : details) text += row;
    write_file_atomically(options_.details, text);
  }
  std::vector<Score> scores;
  for (size_t i = 0; i < schedules.size(); ++i) scores.push_back({schedules[i], std::move(answers[i])});
  return scores;
}

Json Scoring::settings_json() const {
  return {
      {"tool_version", version()},
      {"model",
       {{"id", model_.id}, {"weights_fingerprint", model_.weights_fingerprint}, {"layers", model_.layers}}},
      {"task",
       {{"name", task_->name()}, {"version", task_->version()}, {"prompt_style", evaluation::name(style_)}}},
      {"data", {{"path", options_.data.string()}, {"sha256", dataset_.sha256}, {"questions", questions_}}},
      {"attention", evaluation::method_json(options_.attention)},
      {"generation",
       {{"dtype", kernels::name(generation_.dtype)},
        {"temperature", generation_.temperature},
        {"top_p", generation_.top_p},
        {"repetition_penalty", generation_.repetition_penalty},
        {"max_new_tokens", generation_.max_new_tokens}}},
      {"seed", options_.seed},
      {"device", options_.device}};
}

std::string format_accuracy(const evaluation::Proportion& score) {
  const evaluation::Interval interval = evaluation::wilson_interval(score.correct, score.questions);
  return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * score.accuracy(), 100 * interval.low,
                     100 * interval.high);
}

Json score_json(const Score& score) {
  const evaluation::Proportion proportion = score.answers.proportion();
  const evaluation::Interval interval = evaluation::wilson_interval(proportion.correct, proportion.questions);
  Json json = {{"schedule", score.schedule.label}};
  json["samples"] = score.schedule.schedule ? Json(score.schedule.schedule->samples) : Json();
  json["total"] = score.schedule.schedule ? Json(score.schedule.schedule->total()) : Json();
  json["n"] = proportion.questions;
  json["correct"] = proportion.correct;
  json["accuracy"] = proportion.accuracy();
  json["interval_95"] = {interval.low, interval.high};
  json["standard_error"] = evaluation::standard_error(proportion.correct, proportion.questions);
  json["prompt_tokens"] = score.answers.prompt_tokens;
  json["output_tokens"] = score.answers.output_tokens;
  json["cut_off"] = score.answers.cut_off;
  return json;
}

std::string format_verdict(const worker::PairedVerdict& verdict) {
  return fmt::format("{:+.1f} points [{:+.1f}, {:+.1f}], p = {:.2g} ({} questions only here, {} only there)",
                     100 * verdict.pairs.difference(), 100 * verdict.difference.low,
                     100 * verdict.difference.high, verdict.p_value, verdict.pairs.only_first,
                     verdict.pairs.only_second);
}

Json verdict_json(const worker::PairedVerdict& verdict) {
  return {{"test", "mcnemar-exact"},
          {"only_first", verdict.pairs.only_first},
          {"only_second", verdict.pairs.only_second},
          {"p_value", verdict.p_value},
          {"difference", verdict.pairs.difference()},
          {"interval_95", {verdict.difference.low, verdict.difference.high}}};
}

}  // namespace allot::app
