// Turns the options of `allot tune` and `allot aggregator` into the spec that defines a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/cli/options.h"
#include "app/run/attention_options.h"
#include "app/run/data_options.h"
#include "app/run/generation_options.h"
#include "app/run/policy_options.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// The definition of a run, as given on the command line or in a config file. The values here
// are the defaults.
struct RunOptions {
  std::filesystem::path run = "runs/tune";
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  bool whole_weights = false;  // workers must have the model's weights to the last byte
  std::filesystem::path data;
  std::filesystem::path heldout;
  evaluation::FieldNames fields;  // of both files
  std::string task = "gsm8k";
  std::string prompt = "auto";
  std::optional<int32_t> heldout_questions;  // empty: the first 512, or all of a smaller file

  std::string reward = "auto";                  // "auto", "answers", "divergence" or "mixed"
  std::optional<int64_t> divergence_episodes;   // of "mixed"; empty: as many as the learner wants
  std::optional<int32_t> divergence_questions;  // of such an episode; empty: `questions`
  int32_t preflight = 32;                       // questions; 0 = no preflight
  bool ignore_preflight = false;
  double gain_floor = 0.5;         // points
  double price_per_hour = 0;       // of a worker; 0 = not known
  double cross_check = 0;          // share of episodes that workers of two holders grade; 0 = none
  std::string until = "episodes";  // or "settled"
  int64_t episodes = 250;
  int64_t most_episodes = 2000;  // until settled
  int32_t questions = 16;
  PolicyOptions policy;

  kernels::AttentionMethod attention = kernels::usual_method();

  GenerationOptions generation;

  int64_t seed = 1;
  int64_t lease_seconds = 120;
  int32_t max_attempts = 5;
};

// Declares the options above. None is marked as required, because build_run_spec names all that are missing.
void declare_run_options(OptionSet& options, RunOptions* run);

// Reads the model directory and the data files and makes the spec: it has fingerprints of the model, the
// tokenizer and the data, absolute paths and a new run_id. Throws UsageError for options that are missing or
// do not fit each other (all of them at once), InvalidArgument where they do not fit the model or the data,
// and the errors of the readers.
wire::RunSpec build_run_spec(const RunOptions& run);

// A name for a run that no other has: of the time and a random number.
std::string new_run_id();

// Sets the generation of a spec; the stop rule is the task's.
void set_generation(const evaluation::Generation& generation, wire::GenerationSpec* spec);

// The schedule that --start `text` names, for the run of `spec`, in which everything but the start is set.
// Throws UsageError for what is no schedule, Mismatch for a file that was made under another attention or
// total.
policy::Schedule start_of(const std::string& text, const wire::RunSpec& spec);

// Sets the options that depend on model, task, data and other options (prompt style, generation, held-out
// questions, reward, episodes) to their values in `spec`, which was built from `run`.
void resolve(const wire::RunSpec& spec, RunOptions* run);

}  // namespace allot::app
