// What eval, verify and ablate share: their options, and scoring schedules on the questions of a data file
// with a model in this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "app/files/schedule_file.h"
#include "app/run/attention_options.h"
#include "app/run/generation_options.h"
#include "evaluation/statistics.h"
#include "evaluation/task.h"
#include "model/model_config.h"
#include "worker/schedule_score.h"

namespace allot::app {

struct ScoringOptions {
  std::filesystem::path model;
  std::filesystem::path data;
  std::string task = "gsm8k";
  std::string prompt_style = "auto";
  int64_t limit = 0;  // 0 = all questions
  kernels::AttentionMethod attention;
  GenerationOptions generation;
  int64_t seed = 0;
  std::string device = "cpu";
  int32_t threads = 0;
  int32_t max_sequences = 256;
  std::filesystem::path details;  // empty: replies are not kept
};

// Declares the options above; --model and --data are required.
void declare_scoring_options(OptionSet* set, ScoringOptions* options);

// A schedule as asked for on the command line.
struct NamedSchedule {
  std::string label;                         // as given
  std::optional<policy::Schedule> schedule;  // nothing = dense
  std::optional<ScheduleFile> file;          // where it came from one
};

// "dense", "uniform:N", "a,b,c,…" or the path of a schedule.json. Throws InvalidArgument for a list that does
// not fit the model's layers, Mismatch when the file is of another model, and the errors of the reader.
NamedSchedule parse_schedule_argument(const std::string& text, const model::ModelIdentity& model);

// The total of `schedule` spread over its layers as evenly as it goes, labelled "uniform". Throws UsageError
// for dense, which has no total.
NamedSchedule even_spread(const NamedSchedule& schedule);

// How a schedule did.
struct Score {
  NamedSchedule schedule;
  worker::ScheduleScore answers;
};

// Model, task, data and settings of one command, loaded and checked.
class Scoring {
 public:
  // `set` tells which options were given.
  Scoring(const ScoringOptions& options, const OptionSet& set);
  ~Scoring();

  const model::ModelIdentity& model() const { return model_; }
  const evaluation::Dataset& dataset() const { return dataset_; }
  const evaluation::Task& task() const { return *task_; }
  evaluation::PromptStyle prompt_style() const { return style_; }
  const ScoringOptions& options() const { return options_; }  // resolved
  const evaluation::Generation& generation() const { return generation_; }
  uint32_t questions() const { return questions_; }

  // Parses the arguments. A schedule.json brings its attention settings where no flag sets them; files that
  // differ in them are a Mismatch.
  std::vector<NamedSchedule> schedules(std::span<const std::string> arguments);
  // Loads the model and scores, showing progress on stderr. Writes the details file when one is wanted.
  std::vector<Score> run(std::span<const NamedSchedule> schedules);

  // What the result rests on: tool version, model, task, data, attention and sampling settings, seed, device.
  nlohmann::ordered_json settings_json() const;
  double seconds() const { return seconds_; }  // of run(), without loading

 private:
  void adopt(const kernels::AttentionMethod& attention, const std::string& source);

  ScoringOptions options_;
  const OptionSet& set_;
  model::ModelIdentity model_;
  evaluation::PromptStyle style_;
  std::unique_ptr<evaluation::Task> task_;
  evaluation::Dataset dataset_;
  evaluation::Generation generation_;
  uint32_t questions_ = 0;
  std::string attention_source_;  // the schedule.json whose settings are in use
  double seconds_ = 0;
};

// "71.4 % [65.2, 76.9]".
std::string format_accuracy(const evaluation::Proportion& score);
nlohmann::ordered_json score_json(const Score& score);

// "+57.1 points [50.2, 63.9], p = 1.2e-20 (121 questions only here, 7 only there)".
std::string format_verdict(const worker::PairedVerdict& verdict);
nlohmann::ordered_json verdict_json(const worker::PairedVerdict& verdict);

}  // namespace allot::app
