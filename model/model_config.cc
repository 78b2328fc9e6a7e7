#include "model/model_config.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/sha256.h"
#include "model/adapter.h"
#include "model/hub_cache.h"
#include "model/json_view.h"
#include "model/random_weights.h"
#include "model/safetensors.h"

namespace allot::model {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr double kMaxReal = 1e15;

// The values that transformers uses for fields that config.json leaves out, where architectures differ.
struct Defaults {
  std::optional<int32_t> num_kv_heads = std::nullopt;  // nothing: num_attention_heads
  std::optional<int32_t> head_dim = std::nullopt;      // nothing: hidden_size / num_attention_heads
  const char* hidden_act = "silu";
  double rope_theta = 10000;
  double rms_norm_eps = 1e-6;
};

struct SupportedArchitecture {
  const char* name;
  Architecture architecture;
  Defaults defaults;
};
constexpr SupportedArchitecture kArchitectures[] = {
    {"LlamaForCausalLM", Architecture::kLlama, {}},
    {"Qwen2ForCausalLM", Architecture::kQwen2, {.num_kv_heads = 32}},
    {"Qwen3ForCausalLM", Architecture::kQwen3, {.num_kv_heads = 32, .head_dim = 128}},
    {"MistralForCausalLM", Architecture::kMistral, {.num_kv_heads = 8}},
    {"BitNetForCausalLM",
     Architecture::kBitNet,
     {.num_kv_heads = 5, .hidden_act = "relu2", .rope_theta = 500000, .rms_norm_eps = 1e-5}},
};
// Default of every architecture that has a sliding window.
constexpr int64_t kDefaultSlidingWindow = 4096;

const SupportedArchitecture& read_architecture(const JsonView& config) {
  const JsonView names = config.at("architectures");
  for (const JsonView& name : names.elements()) {
    for (const SupportedArchitecture& supported : kArchitectures) {
      if (name.text() == supported.name) return supported;
    }
  }
  std::string list;
  for (const SupportedArchitecture& supported : kArchitectures) {
    list += (list.empty() ? "" : ", ") + std::string(supported.name);
  }
  throw Unsupported(names.where() + " is " + names.shown() + ", supported are " + list);
}

int32_t size_field(const JsonView& config, const std::string& name) {
  return static_cast<int32_t>(config.at(name).integer(1, kMaxSize));
}

void read_sizes(const JsonView& config, const Defaults& defaults, ModelConfig* result) {
  result->vocab_size = size_field(config, "vocab_size");
  result->hidden_size = size_field(config, "hidden_size");
  result->intermediate_size = size_field(config, "intermediate_size");
  result->num_layers = size_field(config, "num_hidden_layers");
  result->num_q_heads = size_field(config, "num_attention_heads");
  // null means one per query head everywhere.
  const bool kv_heads_left_out = !config.value().contains("num_key_value_heads");
  result->num_kv_heads = static_cast<int32_t>(config.integer_or(
      "num_key_value_heads", 1, kMaxSize,
      kv_heads_left_out ? defaults.num_kv_heads.value_or(result->num_q_heads) : result->num_q_heads));
  result->max_position_embeddings = config.at("max_position_embeddings").integer(1, kMaxSize);
  if (result->num_q_heads % result->num_kv_heads != 0) {
    throw CorruptFile(config.where() + ": num_key_value_heads is " + std::to_string(result->num_kv_heads) +
                      (kv_heads_left_out ? " by default" : "") +
                      ", expected a divisor of num_attention_heads, which is " +
                      std::to_string(result->num_q_heads));
  }
  if (const auto head_dim = config.find("head_dim")) {
    result->head_dim = static_cast<int32_t>(head_dim->integer(1, kMaxSize));
  } else if (defaults.head_dim) {
    result->head_dim = *defaults.head_dim;
  } else if (result->hidden_size % result->num_q_heads == 0) {
    result->head_dim = result->hidden_size / result->num_q_heads;
  } else {
    config.at("hidden_size")
        .fail("a multiple of num_attention_heads, which is " + std::to_string(result->num_q_heads) +
              ", since head_dim is not given");
  }
  if (result->head_dim % 2 != 0) {
    throw CorruptFile(config.where() + ": head_dim is " + std::to_string(result->head_dim) +
                      ", expected an even number, since rotary embeddings turn pairs");
  }
}

// `rope` is rope_parameters (transformers 5) or rope_scaling (transformers 4).
void read_rope_scaling(const JsonView& rope, ModelConfig* result) {
  if (rope.value().is_object() && std::any_of(rope.value().begin(), rope.value().end(),
                                              [](const auto& value) { return value.is_object(); })) {
    throw Unsupported(rope.where() +
                      " gives each layer type its own settings, supported is one setting for all layers");
  }
  // Older files say `type` where newer ones say `rope_type`.
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return;
  if (type != "llama3") {
    throw Unsupported(rope.where() + " has rope_type \"" + type + "\", supported are default, llama3");
  }
  Llama3RopeScaling scaling;
  scaling.factor = rope.at("factor").real(1, kMaxReal);
  scaling.low_freq_factor = rope.at("low_freq_factor").real(1e-6, kMaxReal);
  scaling.high_freq_factor = rope.at("high_freq_factor").real(1e-6, kMaxReal);
  scaling.original_max_position_embeddings =
      rope.at("original_max_position_embeddings").integer(1, result->max_position_embeddings);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.at("high_freq_factor")
        .fail("more than low_freq_factor, which is " + rope.at("low_freq_factor").shown());
  }
  result->rope_scaling = scaling;
}

void read_rope(const JsonView& config, const Defaults& defaults, ModelConfig* result) {
  const auto parameters = config.find("rope_parameters");
  const auto scaling = parameters ? parameters : config.find("rope_scaling");
  const JsonView& theta_holder = parameters && parameters->find("rope_theta") ? *parameters : config;
  result->rope_theta = theta_holder.real_or("rope_theta", 1, kMaxReal, defaults.rope_theta);
  if (scaling) read_rope_scaling(*scaling, result);
  for (const JsonView* holder : {&config, scaling ? &*scaling : &config}) {
    const auto partial = holder->find("partial_rotary_factor");
    if (partial && partial->real(0, 1) != 1) {
      throw Unsupported(partial->where() + " is " + partial->shown() +
                        ", supported is 1 (every channel is rotated)");
    }
  }
}

kernels::Activation read_activation(const JsonView& config, const Defaults& defaults) {
  const std::string activation = config.text_or("hidden_act", defaults.hidden_act);
  if (activation == "silu" || activation == "swish") return kernels::Activation::kSilu;
  if (activation == "relu2") return kernels::Activation::kReluSquared;
  throw Unsupported(config.at("hidden_act").where() + " is \"" + activation +
                    "\", supported are silu, relu2");
}

// Fields of quantization_config have the defaults of transformers' BitNetQuantConfig.
TernaryWeights read_ternary_weights(const JsonView& quantization) {
  if (const auto kept = quantization.find("modules_to_not_convert")) {
    for (const JsonView& module : kept->elements()) {
      if (module.text() == "lm_head") continue;
      throw Unsupported(module.where() + " is " + module.shown() +
                        ", supported is lm_head, which never is ternary");
    }
  }
  if (quantization.boolean_or("use_rms_norm", false)) {
    throw Unsupported(quantization.at("use_rms_norm").where() +
                      " is true, supported is false: no norms but those of the architecture");
  }
  const std::string linear = quantization.text_or("linear_class", "bitlinear");
  const std::string mode = quantization.text_or("quantization_mode", "offline");
  if (linear != "bitlinear" && linear != "autobitlinear")
    quantization.at("linear_class").fail("bitlinear or autobitlinear");
  if (mode != "online" && mode != "offline") quantization.at("quantization_mode").fail("online or offline");
  if (linear == "bitlinear") return TernaryWeights::kPackedOver;
  return mode == "online" ? TernaryWeights::kMaster : TernaryWeights::kPacked;
}

void read_quantization(const JsonView& config, ModelConfig* result) {
  const auto quantization = config.find("quantization_config");
  if (!quantization) return;
  if (result->architecture != Architecture::kBitNet ||
      quantization->text_or("quant_method", "") != "bitnet") {
    throw Unsupported(quantization->where() + " is " + quantization->shown() + " in a " +
                      result->architecture_name +
                      ", supported are unquantised weights, and quant_method bitnet in a BitNetForCausalLM; "
                      "use the model's original checkpoint");
  }
  result->ternary = read_ternary_weights(*quantization);
  if (result->attention_bias) {
    throw Unsupported(config.at("attention_bias").where() +
                      " is true, supported with ternary weights is false");
  }
}

void refuse_what_would_change_results(const JsonView& config) {
  if (const auto layer_types = config.find("layer_types")) {
    for (const JsonView& type : layer_types->elements()) {
      if (type.text() != "full_attention") {
        throw Unsupported(type.where() + " is " + type.shown() +
                          ", supported is full_attention in every layer");
      }
    }
  }
}

// Mistral slides whenever it has a window, Qwen when use_sliding_window says so, Llama and BitNet never. A
// window over all positions hides nothing.
void refuse_sliding_window(const JsonView& config, const ModelConfig& model) {
  const bool slides =
      model.architecture == Architecture::kMistral ||
      ((model.architecture == Architecture::kQwen2 || model.architecture == Architecture::kQwen3) &&
       config.boolean_or("use_sliding_window", false));
  const auto window = config.find("sliding_window");
  const bool is_null = !window && config.value().contains("sliding_window");
  if (!slides || is_null) return;
  const int64_t keys =
      window ? window->integer(1, std::numeric_limits<int64_t>::max()) : kDefaultSlidingWindow;
  if (keys >= model.max_position_embeddings) return;
  throw Unsupported(config.where() + ": sliding_window is " + std::to_string(keys) +
                    (window ? "" : " by default") + ", less than max_position_embeddings, which is " +
                    std::to_string(model.max_position_embeddings) +
                    "; supported is full attention in every layer: null, or a window over all positions" +
                    (model.architecture == Architecture::kMistral ? "" : ", or use_sliding_window false"));
}

void read_biases(const JsonView& config, ModelConfig* result) {
  switch (result->architecture) {
    case Architecture::kLlama:
      result->attention_bias = result->attention_output_bias = config.boolean_or("attention_bias", false);
      result->mlp_bias = config.boolean_or("mlp_bias", false);
      return;
    case Architecture::kQwen2:
      result->attention_bias = true;
      return;
    case Architecture::kQwen3:
      result->attention_bias = result->attention_output_bias = config.boolean_or("attention_bias", false);
      return;
    case Architecture::kMistral:
      return;
    case Architecture::kBitNet:
      result->attention_bias = result->attention_output_bias = config.boolean_or("attention_bias", false);
      return;
  }
}

// The norm of attention's output has as many weights as the model's hidden states.
void refuse_uneven_sub_norm(const JsonView& config, const ModelConfig& model) {
  const int64_t attended = int64_t{model.num_q_heads} * model.head_dim;
  if (!model.sub_norms || attended == model.hidden_size) return;
  throw CorruptFile(config.where() + ": hidden_size is " + std::to_string(model.hidden_size) +
                    ", expected num_attention_heads times head_dim, which is " + std::to_string(attended));
}

std::string read_stored_dtype(const JsonView& config) {
  const auto field = config.find("dtype") ? config.find("dtype") : config.find("torch_dtype");
  if (!field) return "";
  constexpr std::string_view kPrefix = "torch.";
  std::string name = field->text();
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  if (name != "float32" && name != "bfloat16" && name != "float16") {
    throw Unsupported(field->where() + " is " + field->shown() +
                      ", supported are float32, bfloat16, float16");
  }
  return name;
}

std::vector<int32_t> token_ids(const JsonView& field) {
  std::vector<int32_t> ids;
  if (field.value().is_array()) {
    for (const JsonView& id : field.elements()) ids.push_back(static_cast<int32_t>(id.integer(0, kMaxSize)));
  } else {
    ids.push_back(static_cast<int32_t>(field.integer(0, kMaxSize)));
  }
  return ids;
}

// bos and pad: early Llama files say -1 for "there is none".
std::optional<int32_t> token_id(const JsonView& holder, const std::string& name) {
  const auto field = holder.find(name);
  if (!field) return std::nullopt;
  const int64_t id = field->integer(-1, kMaxSize);
  return id < 0 ? std::nullopt : std::optional(static_cast<int32_t>(id));
}

}  // namespace

ModelConfig read_model_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const nlohmann::json document = parse_json_file(path);
  const JsonView config(document, path.string());
  ModelConfig result;
  const SupportedArchitecture& supported = read_architecture(config);
  result.architecture = supported.architecture;
  result.architecture_name = supported.name;
  refuse_what_would_change_results(config);
  read_sizes(config, supported.defaults, &result);
  refuse_sliding_window(config, result);
  read_rope(config, supported.defaults, &result);
  read_biases(config, &result);
  read_quantization(config, &result);
  result.activation = read_activation(config, supported.defaults);
  result.rms_norm_eps = config.real_or("rms_norm_eps", 0, 1, supported.defaults.rms_norm_eps);
  result.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  result.qk_norm = result.architecture == Architecture::kQwen3;
  result.sub_norms = result.architecture == Architecture::kBitNet;
  refuse_uneven_sub_norm(config, result);
  result.initializer_range = config.real_or("initializer_range", 0, 1, 0.02);
  result.stored_dtype = read_stored_dtype(config);
  return result;
}

GenerationDefaults read_generation_defaults(const std::filesystem::path& directory) {
  const std::filesystem::path config_path = directory / "config.json";
  const nlohmann::json config_document = parse_json_file(config_path);
  const JsonView config(config_document, config_path.string());

  const std::filesystem::path path = directory / "generation_config.json";
  const bool present = std::filesystem::exists(path);
  const nlohmann::json document = present ? parse_json_file(path) : nlohmann::json::object();
  const JsonView generation(document, path.string());

  GenerationDefaults result;
  for (const JsonView* holder : {&generation, &config}) {
    if (const auto eos = holder->find("eos_token_id"); eos && result.eos_token_ids.empty()) {
      result.eos_token_ids = token_ids(*eos);
    }
    if (!result.bos_token_id) result.bos_token_id = token_id(*holder, "bos_token_id");
    if (!result.pad_token_id) result.pad_token_id = token_id(*holder, "pad_token_id");
  }
  result.temperature = generation.real_or("temperature", 0, 1e6, result.temperature);
  result.top_p = generation.real_or("top_p", 0, 1, result.top_p);
  result.repetition_penalty = generation.real_or("repetition_penalty", 1e-6, 1e6, result.repetition_penalty);
  result.do_sample = generation.boolean_or("do_sample", result.do_sample);
  return result;
}

namespace {

// In the order of the names, so that splitting a checkpoint into shards does not change it.
std::string weights_fingerprint(const Checkpoint& checkpoint) {
  std::string digest_input;
  for (const auto& [name, tensor] : checkpoint.tensors()) append_sample(tensor, &digest_input);
  return sha256_hex(digest_input);
}

// The hash of config.json, which is part of the identity, already covers the configuration and
// the tensor names.
std::string random_fingerprint(uint64_t seed) {
  return sha256_hex("random weights, version " + std::to_string(kRandomWeightsVersion) + ", seed " +
                    std::to_string(seed));
}

std::string tokenizer_sha256(const std::filesystem::path& directory, bool needed) {
  const std::filesystem::path path = directory / "tokenizer.json";
  if (std::filesystem::exists(path)) return sha256_file(path);
  if (!needed) return "";
  throw NotFound(path.string() +
                 " is missing: to ask questions takes the model's tokenizer; allot logits and allot bench "
                 "decode run without one" +
                 download_hint(directory));
}

}  // namespace

ModelIdentity identify_model(const std::filesystem::path& directory, const IdentifyOptions& options) {
  const ModelConfig config = read_model_config(directory);
  ModelIdentity identity;
  identity.id = model_name(directory);
  identity.config_sha256 = sha256_file(directory / "config.json");
  identity.tokenizer_sha256 = tokenizer_sha256(directory, options.needs_tokenizer);
  identity.weights_fingerprint =
      options.random_weights ? random_fingerprint(*options.random_weights)
                             : weights_fingerprint(Checkpoint::open(directory, MappingAccess::kScattered));
  identity.layers = config.num_layers;
  identity.num_q_heads = config.num_q_heads;
  identity.num_kv_heads = config.num_kv_heads;
  identity.head_dim = config.head_dim;
  if (options.adapter) {
    identity.adapter = Adapter::open(*options.adapter, config, MappingAccess::kScattered).identity();
  }
  return identity;
}

std::string whole_weights_sha256(const std::filesystem::path& directory) {
  const Checkpoint checkpoint = Checkpoint::open(directory, MappingAccess::kWhole);
  Sha256 hash;
  for (const auto& [name, tensor] : checkpoint.tensors()) update_with_all(tensor, &hash);
  return hex(hash.finish());
}

}  // namespace allot::model
