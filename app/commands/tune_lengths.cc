#include "app/commands/tune_lengths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <optional>
#include <sstream>

#include "app/cli/child_process.h"
#include "app/cli/own_executable.h"
#include "app/cli/version.h"
#include "app/files/schedule_file.h"
#include "app/run/grader_option.h"
#include "app/run/model_options.h"
#include "app/run/resume.h"
#include "app/run/run_directory.h"
#include "app/scoring/prompt_lengths.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/accuracy.h"
#include "evaluation/answers.h"
#include "evaluation/json_fields.h"
#include "evaluation/task.h"
#include "model/tokenizer.h"

namespace allot::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kInterruptedCode = 128 + SIGINT;

struct Band {
  int64_t most_tokens = 0;
  fs::path run;
  fs::path data;
  fs::path heldout;

  std::string name() const { return fmt::format("up to {}", most_tokens); }
};

std::vector<Band> bands_of(const LengthsRequest& request) {
  std::vector<Band> bands;
  for (const int64_t most : request.lengths) {
    const fs::path run = request.run.run / fmt::format("up-to-{}", most);
    bands.push_back({.most_tokens = most, .run = run, .data = run, .heldout = run});
    bands.back().data += "-data.jsonl";
    bands.back().heldout += "-heldout.jsonl";
  }
  return bands;
}

// The lines of JSON lines, as many as it has questions.
std::vector<std::string> lines_of(const fs::path& file, size_t questions) {
  std::istringstream text(read_file(file));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  if (lines.size() != questions || file.extension() == ".csv")
    throw UsageError(fmt::format(
        "--lengths splits JSON lines, one a question; {} has {} questions in another form: write them as such",
        file.string(), questions));
  return lines;
}

// Writes the questions of each band to its file, which `place` names.
evaluation::Dataset split(const LengthsRequest& request, const evaluation::Task& task,
                          const std::string& style, const fs::path& file, std::span<const Band> bands,
                          fs::path Band::*place) {
  evaluation::Dataset all = task.load(file, request.run.fields);
  const std::vector<std::string> lines = lines_of(file, all.questions.size());
  const int32_t new_tokens =
      request.run.generation.max_new_tokens.value_or(task.generation_defaults().max_new_tokens);
  const std::vector<int64_t> lengths =
      prompt_lengths(request.run.model, task, style, new_tokens, all.questions);
  std::vector<std::string> texts(bands.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto band =
        std::ranges::find_if(bands, [&](const Band& one) { return lengths[i] <= one.most_tokens; });
    if (band == bands.end())
      throw UsageError(fmt::format(
          "--lengths: question {} of {} has a prompt of {} tokens, which is longer than {}; give a last "
          "length that holds it",
          i, file.string(), lengths[i], bands.back().most_tokens));
    texts[static_cast<size_t>(band - bands.begin())] += lines[i] + "\n";
  }
  for (size_t i = 0; i < bands.size(); ++i) {
    if (texts[i].empty())
      throw UsageError(fmt::format("--lengths: no question of {} has a prompt {} tokens long{}; leave {} out",
                                   file.string(), bands[i].name(),
                                   i == 0 ? "" : fmt::format(" and longer than {}", bands[i - 1].most_tokens),
                                   bands[i].most_tokens));
    write_file_atomically(bands[i].*place, texts[i]);
  }
  return all;
}

// The options of this command for the run of a band, as a config file: those that define the run only where
// it has not begun.
std::string config_of(const Band& band, const OptionSet& set) {
  RunOptions unused;
  OptionSet of_run("tune", "", "");
  declare_run_options(of_run, &unused);
  std::vector<std::string> left_out = {"lengths", "run", "data", "heldout", "json"};
  if (holds_run(band.run)) std::ranges::copy(of_run.names(), std::back_inserter(left_out));
  std::string text = "run = " + band.run.string() + "\n";
  if (!holds_run(band.run))
    text += fmt::format("data = {}\nheldout = {}\n", band.data.string(), band.heldout.string());
  std::istringstream lines(set.resolved());
  for (std::string line; std::getline(lines, line);)
    if (std::ranges::find(left_out, line.substr(0, line.find(' '))) == left_out.end()) text += line + "\n";
  return text;
}

// Asks the held-out questions of a band under all schedules; their names in `eval`. False when a signal asks
// to stop.
bool ask(const LengthsRequest& request, const Band& band, std::span<const std::string> schedules) {
  std::vector<std::string> words = {(own_directory() / "allot-model").string(), "eval"};
  const auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  add({"--model", request.run.model, "--data", band.heldout, "--device", request.device, "--run",
       band.run / "lengths"});
  if (request.run.adapter) add({"--adapter", *request.run.adapter});
  if (!evaluation::read_task_definition(request.run.task).empty()) add({"--task", request.run.task});
  const evaluation::FieldNames usual;
  if (request.run.fields.question != usual.question) add({"--question-field", request.run.fields.question});
  if (request.run.fields.answer != usual.answer) add({"--answer-field", request.run.fields.answer});
  add({"--threads", std::to_string(request.threads)});
  if (request.max_sequences > 0) add({"--max-sequences", std::to_string(request.max_sequences)});
  for (const std::string& schedule : schedules) add({"--schedule", schedule});
  std::ranges::copy(grader_words(request.grader), std::back_inserter(words));
  const fs::path log = log_file(band.run, "lengths");
  std::cerr << fmt::format(
      "asking the held-out questions of prompts {} tokens long under all schedules; progress is in {}\n",
      band.name(), log.string());
  return run_child(words, log, "the held-out questions of prompts " + band.name() + " tokens long");
}

// Of one schedule, by question.
std::vector<double> scores_of(const Band& band, const std::string& schedule) {
  const evaluation::AnswerJournal journal(band.run / "lengths" / "replies.jsonl");
  std::vector<double> scores;
  for (const auto& [key, answer] : journal.answers())
    if (key.schedule == schedule) scores.push_back(answer.score);
  return scores;
}

struct Learned {
  std::vector<Band> bands;
  std::vector<ScheduleFile> files;   // of each band
  std::vector<LengthScores> scores;  // of each file's schedule
  LengthScores even;                 // of the even schedule of the same total
  evaluation::DataUse learned_on;
  evaluation::DataUse measured_on;
  LengthVerdict verdict;
};

// The schedules of all bands as one file, with what was measured of them together.
ScheduleFile with_bands(const Learned& learned) {
  ScheduleFile file = learned.files.back();
  for (size_t i = 0; i + 1 < learned.files.size(); ++i)
    file.bands.push_back(
        {.most_tokens = learned.bands[i].most_tokens, .schedule = learned.files[i].schedule});
  const std::vector<double> own = own_scores(learned.scores), even = joined_scores(learned.even.scores);
  file.evaluation = {.uniform = evaluation::accuracy_of(even),
                     .learned = evaluation::accuracy_of(own),
                     .dense = std::nullopt,
                     .paired = evaluation::compare_scores(own, even)};
  file.conditions.learned_on = learned.learned_on;
  file.conditions.measured_on = learned.measured_on;
  file.calibration.reset();
  file.costs.reset();
  file.start = {};
  file.tool_version = version();
  return file;
}

Json row_json(const std::string& schedule, const policy::Schedule& samples, const LengthScores& scores) {
  Json row = {{"schedule", schedule}, {"samples", evaluation::samples_json(samples.samples)}};
  for (const std::vector<double>& of_band : scores.scores)
    row["by_length"].push_back(evaluation::to_json(evaluation::accuracy_of(of_band)));
  row["all"] = evaluation::to_json(evaluation::accuracy_of(joined_scores(scores.scores)));
  return row;
}

Json result_json(const Learned& learned, const LengthsRequest& request) {
  Json json = {{"schema_version", 1}, {"tool_version", version()}, {"lengths", request.lengths}};
  json["schedules"] = {
      row_json("uniform", policy::even_schedule(learned.files.back().schedule), learned.even)};
  for (size_t i = 0; i < learned.files.size(); ++i)
    json["schedules"].push_back(
        row_json(learned.bands[i].name(), learned.files[i].schedule, learned.scores[i]));
  json["best_for_all"] = learned.bands[learned.verdict.best].name();
  json["by_length"] = evaluation::to_json(evaluation::accuracy_of(own_scores(learned.scores)));
  json["against_best"] = to_json(learned.verdict.by_length, "by_length", "best");
  json["bands_pay"] = learned.verdict.pays;
  return json;
}

std::string result_text(const Learned& learned, const fs::path& schedule) {
  std::string text = fmt::format("\n{:<16}", "learned on");
  for (const Band& band : learned.bands) text += fmt::format("{:>14}", band.name());
  text += fmt::format("{:>14}\n", "all");
  const auto line = [&](const std::string& name, const LengthScores& scores) {
    text += fmt::format("{:<16}", name);
    for (const std::vector<double>& of_band : scores.scores)
      text += fmt::format("{:>13.1f}%", 100 * evaluation::accuracy_of(of_band).value);
    text += fmt::format("{:>13.1f}%\n", 100 * scores.mean());
  };
  line("(uniform)", learned.even);
  for (size_t i = 0; i < learned.files.size(); ++i) line(learned.bands[i].name(), learned.scores[i]);
  const std::string best = learned.bands[learned.verdict.best].name();
  return text + fmt::format("each length its own against that of '{}' for all: {}\n{} has {}\n", best,
                            evaluation::text(learned.verdict.by_length), schedule.string(),
                            learned.verdict.pays
                                ? "a schedule for each length of prompts"
                                : fmt::format("that of '{}': choosing by length is not shown to pay", best));
}

}  // namespace

int tune_lengths(const LengthsRequest& request, const OptionSet& set,
                 const std::function<int(std::span<const std::string>)>& tune) {
  const RunOptions& run = request.run;
  if (run.model.empty() || run.data.empty() || run.heldout.empty())
    throw UsageError("--lengths learns on --data and compares on --heldout, with --model; give all three");
  if (holds_run(run.run))
    throw UsageError(fmt::format("--lengths: {} holds a run of its own; name another directory with --run",
                                 run.run.string()));
  const std::string definition = evaluation::read_task_definition(run.task);
  std::string style = run.prompt;
  if (!definition.empty())
    style = evaluation::kFileStyle;
  else if (style == "auto")
    style = evaluation::name(usual_prompt_style(model::Tokenizer::load(run.model)));
  const auto task = evaluation::make_task({run.task, style, definition});
  style = evaluation::identity_of(*task, style).prompt_style;

  Learned learned;
  learned.bands = bands_of(request);
  fs::create_directories(run.run);
  const auto data = [&](const fs::path& file, fs::path Band::*place) {
    const evaluation::Dataset all = split(request, *task, style, file, learned.bands, place);
    return evaluation::DataUse{
        .sha256 = all.sha256, .questions = std::ssize(all.questions), .fields = run.fields};
  };
  learned.learned_on = data(run.data, &Band::data);
  learned.measured_on = data(run.heldout, &Band::heldout);

  for (const Band& band : learned.bands) {
    fs::path config = band.run;
    config += ".conf";
    write_file_atomically(config, config_of(band, set));
    std::cerr << fmt::format("prompts {} tokens long: {}\n", band.name(), band.run.string());
    // What a run prints is no part of this command's JSON.
    std::streambuf* const out = std::cout.rdbuf();
    if (request.json) std::cout.rdbuf(std::cerr.rdbuf());
    int code = 0;
    try {
      code = tune(std::vector<std::string>{"--config", config.string()});
    } catch (...) {
      std::cout.rdbuf(out);
      throw;
    }
    std::cout.rdbuf(out);
    if (code != 0) return code;
    learned.files.push_back(read_schedule_file(schedule_file(band.run)));
  }

  const std::string even = policy::even_schedule(learned.files.back().schedule).to_string();
  std::vector<std::string> names = {even};
  for (const Band& band : learned.bands) names.push_back(schedule_file(band.run));
  for (const Band& band : learned.bands)
    if (!ask(request, band, names)) return kInterruptedCode;
  learned.scores.resize(learned.bands.size());
  for (const Band& band : learned.bands) {
    learned.even.scores.push_back(scores_of(band, even));
    for (size_t i = 0; i < learned.scores.size(); ++i)
      learned.scores[i].scores.push_back(scores_of(band, names[i + 1]));
  }
  learned.verdict = judge_lengths(learned.scores);

  const fs::path schedule = schedule_file(run.run);
  write_schedule_file(schedule,
                      learned.verdict.pays ? with_bands(learned) : learned.files[learned.verdict.best]);
  const Json json = result_json(learned, request);
  write_file_atomically(run.run / "lengths.json", json.dump(2) + "\n");
  if (request.json)
    std::cout << json.dump() << '\n';
  else
    std::cout << result_text(learned, schedule);
  std::cout.flush();
  return 0;
}

}  // namespace allot::app
