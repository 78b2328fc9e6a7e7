#include "tests/app/small_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/file.h"
#include "tests/model/adapter_files.h"

namespace allot::app {
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
  "vocab_size": 4, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 8,
  "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "float32",
  "eos_token_id": 0
})";

constexpr const char* kTokenizer = R"({
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
  "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "one": 1, "two": 2, "three": 3}, "unk_token": "<unk>"}
})";

// A safetensors file with the embedding alone.
std::string weights() {
  const std::string header =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[4,8],"data_offsets":[0,128]}})";
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file + header + std::string(128, '\1');
}

std::string questions(int count, int first) {
  std::string lines;
  for (int number = first; number < first + count; ++number) {
    const std::string n = std::to_string(number);
    lines += R"({"question": "What is )" + n + R"( plus one?", "answer": "It is more.\n#### )" + n + "\"}\n";
  }
  return lines;
}

}  // namespace

SmallModel write_small_model(const std::filesystem::path& directory) {
  const SmallModel small{.model = directory / "small-model",
                         .train = directory / "train.jsonl",
                         .heldout = directory / "heldout.jsonl"};
  write_file_atomically(small.model / "config.json", kConfig);
  write_file_atomically(small.model / "tokenizer.json", kTokenizer);
  write_file_atomically(small.model / "model.safetensors", weights());
  write_file_atomically(small.train, questions(24, 0));
  write_file_atomically(small.heldout, questions(12, 100));
  return small;
}

void write_small_adapter(const std::filesystem::path& directory, double alpha) {
  model::write_adapter(directory, model::adapter_settings(2, alpha),
                       model::factors_of("model.layers.0.self_attn.q_proj", 2, 8, 8));
}

std::vector<std::string> run_words(const std::string& program, const std::string& command,
                                   const SmallModel& small, const std::filesystem::path& run, int episodes,
                                   const std::vector<std::string>& more) {
  std::vector<std::string> words = {program,       command,
                                    "--run",       run.string(),
                                    "--model",     small.model.string(),
                                    "--data",      small.train.string(),
                                    "--heldout",   small.heldout.string(),
                                    "--total",     "64",
                                    "--episodes",  std::to_string(episodes),
                                    "--questions", "4"};
  // Tests count episodes; those of the preflight ask for it.
  if (std::ranges::find(more, "--preflight") == more.end()) words.insert(words.end(), {"--preflight", "0"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace allot::app
