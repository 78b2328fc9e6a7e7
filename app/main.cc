// The light executable: no LibTorch, no CUDA. Commands that run a model are passed on to the executable
// allot-model beside it (eval, verify and ablate where no workers answer for them), and `bench attention`,
// which needs a GPU, to allot-bench; `bench aggregator`, `bench tuner`, `analyze learning`, `coverage`,
// `operations`, `variance`, `tails`, `tiles`, `bernoulli` and `amdahl` are part of this executable.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "app/cli/command_line.h"

namespace allot::app {
namespace {

// Hands a command to the executable that has it.
[[noreturn]] void hand_over(const char* command, std::span<const std::string> arguments) {
  std::vector<std::string> words = {command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  app::hand_over(words);
}

// Benchmarks without a model run here, the others in another executable.
int run_light_bench(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments[0] == "aggregator") return run_bench_aggregator(arguments);
  if (!arguments.empty() && arguments[0] == "tuner") return run_bench_tuner(arguments);
  hand_over("bench", arguments);
}

// Fidelity needs a model, the other analyses do not.
int run_light_analyze(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments[0] == "learning") return run_analyze_learning(arguments);
  if (!arguments.empty() && arguments[0] == "amdahl") return run_analyze_amdahl(arguments);
  if (!arguments.empty() && arguments[0] == "bernoulli") return run_analyze_bernoulli(arguments);
  if (!arguments.empty() && arguments[0] == "coverage") return run_analyze_coverage(arguments);
  if (!arguments.empty() && arguments[0] == "operations") return run_analyze_operations(arguments);
  if (!arguments.empty() && arguments[0] == "tails") return run_analyze_tails(arguments);
  if (!arguments.empty() && arguments[0] == "tiles") return run_analyze_tiles(arguments);
  if (!arguments.empty() && arguments[0] == "variance") return run_analyze_variance(arguments);
  hand_over("analyze", arguments);
}

bool names(std::span<const std::string> arguments, const std::string& option) {
  return std::ranges::any_of(
      arguments, [&](std::string_view word) { return word == option || word.starts_with(option + "="); });
}

// Workers that answer are served here; a model that answers is in another executable.
int run_with_workers(const char* command, CommandFunction on_workers,
                     std::span<const std::string> arguments) {
  if (names(arguments, "--bind")) return on_workers(arguments);
  hand_over(command, arguments);
}

int run_light_eval(std::span<const std::string> arguments) {
  return run_with_workers("eval", run_eval_on_workers, arguments);
}

int run_light_ablate(std::span<const std::string> arguments) {
  return run_with_workers("ablate", run_ablate_on_workers, arguments);
}

// What an engine counted is compared here, too.
int run_light_verify(std::span<const std::string> arguments) {
  if (names(arguments, "--executed")) return run_verify_executed(arguments);
  return run_with_workers("verify", run_verify_on_workers, arguments);
}

}  // namespace
}  // namespace allot::app

int main(int argc, char** argv) {
  using namespace allot::app;
  static constexpr Command kCommands[] = {
      {"tune", "learn a schedule on this machine, verify it and report", false, run_tune},
      {"aggregator", "serve a run to workers: the learner, its leases and its history", false,
       run_aggregator},
      {"worker", "score schedules for an aggregator", true, nullptr},
      {"devices", "list the devices that models can run on here", true, nullptr},
      {"status", "show the progress of a run", false, run_status},
      {"control", "pause, resume or stop a run, or change its episodes, its bounds or its leases", false,
       run_control},
      {"eval",
       "score a model under dense attention or under schedules",
       true,
       run_light_eval,
       {},
       /*described_elsewhere=*/true},
      {"generate", "reply to prompts under dense attention or under a schedule", true, nullptr},
      {"serve", "answer OpenAI-compatible HTTP requests on one device, to measure", true, nullptr},
      {"verify",
       "paired verdict of one schedule against another, or of an engine's counts against a schedule",
       true,
       run_light_verify,
       {},
       /*described_elsewhere=*/true},
      {"ablate",
       "measure each layer's importance: one layer gets one sample, the others the base budget",
       true,
       run_light_ablate,
       {},
       /*described_elsewhere=*/true},
      {"analyze",
       "measure how far sampled attention takes a model from exact attention, compare what runs learned, or "
       "measure what the S2ANTA paper tabulates without a model",
       true,
       run_light_analyze,
       {"learning", "coverage", "operations", "amdahl", "variance", "tails", "tiles", "bernoulli"}},
      {"calibrate", "learn schedules from the divergence of sampled from exact attention, without replies",
       true, nullptr},
      {"history", "check, export, back up or restore the history of a run", false, run_history},
      {"export", "write a schedule in a format that other programs load", false, run_export},
      {"import", "turn a GGUF file into a Hugging Face model directory", false, run_import},
      {"report", "write the report of a run and its plots", false, run_report},
      {"inspect", "say what a model, a schedule or a run holds and what is wrong with it", false,
       run_inspect},
      {"keys", "create the keys that authenticate aggregators and workers", false, run_keys},
      {"tokenize", "lines of text to token ids", false, run_tokenize},
      {"logits", "logits of token ids, as a .npy array", true, nullptr},
      {"grade", "grade predictions against gold answers", false, run_grade},
      {"compare", "compare graded replies of two engines or schedules, question by question", false,
       run_compare},
      {"contexts", "write long contexts with questions and answers, of a wanted number of tokens", false,
       run_contexts},
      {"policy", "let another program drive a learner: JSON lines on stdin and stdout", false, run_policy},
      {"bench",
       "measure decoding, attention, the aggregator and the learners",
       true,
       run_light_bench,
       {"tuner", "aggregator"}},
      {"completion", "print a script that completes command lines in bash or zsh", false, run_completion},
      {"man", "print a manual page, or write all of them", false, run_man},
  };
  return run_command_line(kCommands, std::vector<std::string>(argv + 1, argv + argc));
}
