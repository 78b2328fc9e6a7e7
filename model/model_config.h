// config.json and generation_config.json of a Hugging Face model directory, checked. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation.h"

namespace allot::model {

enum class Architecture { kLlama, kQwen2, kQwen3, kMistral, kBitNet };

// How a checkpoint stores the ternary weights of its layers' projections (ternary.h): quantization_config
// with quant_method bitnet.
enum class TernaryWeights {
  kMaster,      // as full numbers: linear_class autobitlinear, quantization_mode online
  kPacked,      // packed, to be multiplied with weight_scale: autobitlinear, offline
  kPackedOver,  // packed, to be divided by weight_scale: bitlinear
};

// Llama 3 rope scaling (config.json rope_scaling with rope_type "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_max_position_embeddings = 8192;
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string architecture_name;  // "LlamaForCausalLM"
  int32_t vocab_size = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_layers = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // bias of q, k and v; Qwen2 always has it
  bool attention_output_bias = false;  // bias of o; attention_bias of Llama and Qwen3 asks for both
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm of every query and key head before the rotation: Qwen3
  // RMS norms of attention's output before o, and of the MLP's gated product before down: BitNet.
  bool sub_norms = false;
  kernels::Activation activation = kernels::Activation::kSilu;
  // With ternary weights, inputs of the projections are rounded to eight bits (kernels/rows.h, int8_grid).
  std::optional<TernaryWeights> ternary;
  double initializer_range = 0.02;  // standard deviation of the weights before training
  std::string stored_dtype;         // "bfloat16", "float32", "float16": torch_dtype or dtype; may be empty
};

struct GenerationDefaults {
  std::vector<int32_t> eos_token_ids;  // generation_config.json, else config.json
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  double temperature = 1;
  double top_p = 1;
  double repetition_penalty = 1;
  bool do_sample = false;
};

// Reads and checks `directory`/config.json. Accepts both rope spellings of transformers (rope_theta and
// rope_scaling, or rope_parameters). Throws NotFound, CorruptFile (bad JSON, missing or impossible field,
// with its name and value) or Unsupported (architecture, activation, rope type, sliding window shorter than
// the model's positions; naming what is supported). A missing field has the value that transformers uses
// for this architecture.
ModelConfig read_model_config(const std::filesystem::path& directory);
GenerationDefaults read_generation_defaults(const std::filesystem::path& directory);

// What identifies a LoRA adapter (adapter.h).
struct AdapterIdentity {
  std::string id;           // the directory's name, for people
  std::string fingerprint;  // SHA-256 of what it adds to the weights
  friend bool operator==(const AdapterIdentity&, const AdapterIdentity&) = default;
};

// What identifies a model in a schedule, a spec and a worker's Hello.
struct ModelIdentity {
  std::string id;                // the directory's name, for people
  std::string config_sha256;     // of config.json's bytes
  std::string tokenizer_sha256;  // of tokenizer.json's bytes
  // SHA-256 over every tensor's name, dtype, shape and a fixed sample of its bytes; the same however
  // it is sharded.
  std::string weights_fingerprint;
  int32_t layers = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  std::optional<AdapterIdentity> adapter = std::nullopt;  // nothing: the weights as they are in the directory
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};
struct IdentifyOptions {
  // The seed of weights made at random (random_weights.h): the fingerprint then is that of these weights, and
  // a checkpoint in the directory is not read.
  std::optional<uint64_t> random_weights = std::nullopt;
  // The directory of the adapter that is merged into the weights.
  std::optional<std::filesystem::path> adapter = std::nullopt;
  // When false, a directory without tokenizer.json gets an empty tokenizer_sha256.
  bool needs_tokenizer = true;
};

// Reads only headers and at most some MiB of weights, whatever their size. Throws the errors of the readers,
// those of Adapter::open among them.
ModelIdentity identify_model(const std::filesystem::path& directory, const IdentifyOptions& options = {});

// SHA-256 of what weights_fingerprint covers, but with all bytes of every tensor. Reads them all. Throws the
// errors of the readers.
std::string whole_weights_sha256(const std::filesystem::path& directory);

}  // namespace allot::model
