// The executable with the model runtime. Users type `allot`, which passes these commands on to it.
#include <string>
#include <vector>

#include "app/cli/command_line.h"

int main(int argc, char** argv) {
  using namespace allot::app;
  static constexpr Command kCommands[] = {
      {"worker", "score schedules for an aggregator", true, run_worker},
      {"devices", "list the devices that models can run on here", true, run_devices},
      {"eval", "score a model under dense attention or under schedules", true, run_eval},
      {"generate", "reply to prompts under dense attention or under a schedule", true, run_generate},
      {"serve", "answer OpenAI-compatible HTTP requests on one device, to measure", true, run_serve},
      {"verify", "paired verdict of one schedule against another", true, run_verify},
      {"ablate", "measure each layer's importance: one layer gets one sample, the others the base budget",
       true, run_ablate},
      {"analyze",
       "measure how far sampled attention takes a model from exact attention, or what runs learned",
       true,
       run_analyze,
       {"fidelity"}},
      {"calibrate", "learn schedules from the divergence of sampled from exact attention, without replies",
       true, run_calibrate},
      {"logits", "logits of token ids, as a .npy array", true, run_logits},
      {"bench",
       "measure decoding, attention, the aggregator and the learners",
       true,
       run_bench,
       {"decode", "schedule", "arrivals"}},
  };
  return run_command_line(kCommands, std::vector<std::string>(argv + 1, argv + argc));
}
