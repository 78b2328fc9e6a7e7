// The sub-commands of `allot`, one file each in app/commands. Commands that run a model are linked only into
// allot-model; for these, `allot` replaces itself by the allot-model in its own directory. Benchmarks of CUDA
// kernels are in allot-bench.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

namespace allot::app {

using CommandFunction = int (*)(std::span<const std::string> arguments);

struct Command {
  const char* name;
  const char* summary;
  bool needs_model;     // is in allot-model
  CommandFunction run;  // null when the command is in another executable
  // First words under which this executable's command has options of their own ("tuner" of bench); empty ones
  // do not count.
  std::array<std::string_view, 8> forms = {};
  bool described_elsewhere = false;  // by another executable, though `run` answers some of it here
};

// Torch-free commands (in `allot`).
int run_tune(std::span<const std::string> arguments);
int run_aggregator(std::span<const std::string> arguments);
int run_control(std::span<const std::string> arguments);
int run_status(std::span<const std::string> arguments);
int run_export(std::span<const std::string> arguments);
int run_import(std::span<const std::string> arguments);
int run_report(std::span<const std::string> arguments);
int run_inspect(std::span<const std::string> arguments);
int run_keys(std::span<const std::string> arguments);
int run_tokenize(std::span<const std::string> arguments);
int run_grade(std::span<const std::string> arguments);
int run_contexts(std::span<const std::string> arguments);
int run_compare(std::span<const std::string> arguments);
int run_history(std::span<const std::string> arguments);
int run_completion(std::span<const std::string> arguments);
int run_man(std::span<const std::string> arguments);
int run_policy(std::span<const std::string> arguments);
// The half of verify that looks at what an engine counted.
int run_verify_executed(std::span<const std::string> arguments);
// eval, verify and ablate whose questions workers answer.
int run_eval_on_workers(std::span<const std::string> arguments);
int run_verify_on_workers(std::span<const std::string> arguments);
int run_ablate_on_workers(std::span<const std::string> arguments);
// The analysis that looks at runs.
int run_analyze_learning(std::span<const std::string> arguments);
// The analyses that need no weights.
int run_analyze_amdahl(std::span<const std::string> arguments);
int run_analyze_bernoulli(std::span<const std::string> arguments);
int run_analyze_coverage(std::span<const std::string> arguments);
int run_analyze_operations(std::span<const std::string> arguments);
int run_analyze_tails(std::span<const std::string> arguments);
int run_analyze_tiles(std::span<const std::string> arguments);
int run_analyze_variance(std::span<const std::string> arguments);
int run_bench_aggregator(std::span<const std::string> arguments);
int run_bench_tuner(std::span<const std::string> arguments);
// Commands that run a model, or list the devices that one could run on (in `allot-model`).
int run_worker(std::span<const std::string> arguments);
int run_devices(std::span<const std::string> arguments);
int run_eval(std::span<const std::string> arguments);
int run_generate(std::span<const std::string> arguments);
int run_serve(std::span<const std::string> arguments);
int run_verify(std::span<const std::string> arguments);
int run_analyze(std::span<const std::string> arguments);
int run_calibrate(std::span<const std::string> arguments);
int run_ablate(std::span<const std::string> arguments);
int run_logits(std::span<const std::string> arguments);
int run_bench(std::span<const std::string> arguments);
// The command that runs CUDA kernels (in `allot-bench`).
int run_bench_attention(std::span<const std::string> arguments);
int run_bench_arrivals(std::span<const std::string> arguments);
int run_bench_schedule(std::span<const std::string> arguments);

}  // namespace allot::app
