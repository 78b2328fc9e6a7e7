// Other engines on the work of `allot bench decode`, each in a process of its own that has ended, and given
// its memory back, before the next one starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/generate.h"

namespace allot::app {

// A script in bench/ that does the work. It takes the model and --dtype, --device, --threads, --repetitions,
// --prompts, --prompt-tokens, --new-tokens, --max-sequences, --temperature, --top-p, --repetition-penalty
// and, where the weights are random, --random-weights SEED. It prints a line of JSON of its median
// repetition: seconds, fastest_seconds and slowest_seconds (of all repetitions), prefill_seconds (of the
// median one, until every reply had its first token) and conditions, an object that says what ran and where.
struct DecodePeer {
  std::string name;  // "hugging face"
  std::string python;
  std::filesystem::path script;
  std::optional<int64_t> prompts = std::nullopt;  // in place of the workload's
};

struct PeerWork {
  std::filesystem::path model;
  std::string dtype;
  std::string device;
  int32_t threads = 0;
  int32_t prompts = 0;  // in place of the workload's
  int32_t max_sequences = 0;
  std::optional<int64_t> random_weights = std::nullopt;
  bench::GenerateWorkload workload;
};

struct PeerTiming {
  double seconds = 0;  // of the median repetition, as the next two
  double prefill_seconds = 0;
  double decode_seconds = 0;
  double fastest_seconds = 0;
  double slowest_seconds = 0;
  nlohmann::ordered_json conditions;
};

// Runs the peer and waits for it. Throws Error with the last line that it printed when it fails, or prints no
// such line of JSON.
PeerTiming run_decode_peer(const DecodePeer& peer, const PeerWork& work);

// "transformers 5.17.0, torch 2.11.0": the members of an object in their order.
std::string conditions_text(const nlohmann::ordered_json& conditions);

}  // namespace allot::app
