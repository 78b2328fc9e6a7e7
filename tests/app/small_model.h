// A model directory and data files that are complete but tiny, made where a test needs them: what the
// torch-free parts read of a model (config, tokenizer, weights) without its size.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace allot::app {

struct SmallModel {
  std::filesystem::path model;
  std::filesystem::path train;    // 24 questions
  std::filesystem::path heldout;  // 12 questions
};

// Writes all of it under `directory`. The model has 8 layers.
SmallModel write_small_model(const std::filesystem::path& directory);

// Writes a LoRA adapter of that model: rank 2 in a module of its first layer, scaled by `alpha` / 2.
void write_small_adapter(const std::filesystem::path& directory, double alpha);

// "PROGRAM COMMAND" on a run of it in `run`: 64 samples in all, 4 questions an episode, no preflight
// unless `more` asks for one; then `more`.
std::vector<std::string> run_words(const std::string& program, const std::string& command,
                                   const SmallModel& small, const std::filesystem::path& run, int episodes,
                                   const std::vector<std::string>& more);

}  // namespace allot::app
