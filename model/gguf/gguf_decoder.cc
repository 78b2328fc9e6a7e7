#include "model/gguf/gguf_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace allot::model {
namespace {

constexpr int64_t kMaxSize = INT32_MAX;
constexpr double kMaxReal = 1e15;

struct KnownArchitecture {
  const char* gguf;  // general.architecture
  const char* name;  // config.json: architectures
  const char* model_type;
  bool interleaved = false;       // query and key rows are in GGML's rotary order
  bool biases_of_choice = false;  // attention_bias says whether q, k, v and o have biases
  bool qkv_biases = false;        // q, k and v always have them
  bool mlp_biases_of_choice = false;
  bool qk_norm = false;
  int64_t head_dim = 0;  // without a key that says so; 0: embedding_length / head_count
};
constexpr KnownArchitecture kArchitectures[] = {
    {.gguf = "llama",
     .name = "LlamaForCausalLM",
     .model_type = "llama",
     .interleaved = true,
     .biases_of_choice = true,
     .mlp_biases_of_choice = true},
    {.gguf = "qwen2", .name = "Qwen2ForCausalLM", .model_type = "qwen2", .qkv_biases = true},
    {.gguf = "qwen3",
     .name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .biases_of_choice = true,
     .qk_norm = true,
     .head_dim = 128},
};

const KnownArchitecture& find_architecture(const GgufFile& file) {
  const GgufField field = file.at("general.architecture");
  std::string known;
  for (const KnownArchitecture& architecture : kArchitectures) {
    if (field.text() == architecture.gguf) return architecture;
    known.append(known.empty() ? "" : ", ").append(architecture.gguf);
  }
  throw Unsupported(field.where() + " is " + field.shown() + ", supported are " + known);
}

// The keys of one architecture: "llama." and what follows.
class Keys {
 public:
  Keys(const GgufFile& file, const KnownArchitecture& architecture)
      : file_(&file), prefix_(std::string(architecture.gguf) + ".") {}

  std::optional<GgufField> find(const char* name) const { return file_->find(prefix_ + name); }
  GgufField at(const char* name) const { return file_->at(prefix_ + name); }
  int64_t size(const char* name) const { return at(name).integer(1, kMaxSize); }
  int64_t size_or(const char* name, int64_t fallback) const {
    const auto field = find(name);
    return field ? field->integer(1, kMaxSize) : fallback;
  }

 private:
  const GgufFile* file_;
  std::string prefix_;
};

struct Sizes {
  int64_t tokens, hidden, intermediate, layers, q_heads, kv_heads, head_dim, positions;
};

Sizes read_sizes(const GgufFile& file, const Keys& keys, const KnownArchitecture& architecture) {
  // As transformers does; the key vocab_size is not always there.
  const GgufField tokens = file.at("tokenizer.ggml.tokens");
  if (tokens.elements() < 1 || tokens.elements() > uint64_t{kMaxSize}) tokens.fail("1 to 2147483647 tokens");
  Sizes sizes{.tokens = static_cast<int64_t>(tokens.elements()),
              .hidden = keys.size("embedding_length"),
              .intermediate = keys.size("feed_forward_length"),
              .layers = keys.size("block_count"),
              .q_heads = keys.size("attention.head_count"),
              .kv_heads = 0,
              .head_dim = 0,
              .positions = keys.size("context_length")};
  sizes.kv_heads = keys.size_or("attention.head_count_kv", sizes.q_heads);
  if (sizes.q_heads % sizes.kv_heads != 0) {
    keys.at("attention.head_count_kv")
        .fail("a divisor of attention.head_count, which is " + std::to_string(sizes.q_heads));
  }
  const auto key_length = keys.find("attention.key_length");
  const auto rotated = keys.find("rope.dimension_count");
  if (key_length) {
    sizes.head_dim = key_length->integer(2, kMaxSize);
  } else if (architecture.interleaved && rotated) {  // where transformers takes it from, too
    sizes.head_dim = rotated->integer(2, kMaxSize);
  } else if (architecture.head_dim > 0) {
    sizes.head_dim = architecture.head_dim;
  } else if (sizes.hidden % sizes.q_heads == 0) {
    sizes.head_dim = sizes.hidden / sizes.q_heads;
  } else {
    keys.at("embedding_length")
        .fail("a multiple of attention.head_count, which is " + std::to_string(sizes.q_heads) +
              ", since attention.key_length is not given");
  }
  const std::string heads = "the dimension of heads, which is " + std::to_string(sizes.head_dim);
  if (sizes.head_dim % 2 != 0) {
    throw CorruptFile(keys.at("attention.head_count").where() + ": heads have a dimension of " +
                      std::to_string(sizes.head_dim) +
                      ", expected an even one, since rotary embeddings turn pairs");
  }
  for (const char* name : {"rope.dimension_count", "attention.value_length"}) {
    const auto field = keys.find(name);
    if (field && field->integer(1, kMaxSize) != sizes.head_dim) {
      throw Unsupported(field->where() + " is " + field->shown() + ", supported is " + heads);
    }
  }
  return sizes;
}

// What a checkpoint of these architectures cannot say, or the engine does not run.
void refuse_what_would_change_results(const GgufFile& file, const Keys& keys, int64_t positions) {
  const auto refuse = [](const GgufField& field, const std::string& supported) {
    throw Unsupported(field.where() + " is " + field.shown() + ", supported is " + supported);
  };
  if (const auto parts = file.find("split.count"); parts && parts->integer(0, kMaxSize) > 1) {
    refuse(*parts, "a model in one file; join the parts with llama-gguf-split --merge");
  }
  for (const char* name : {"expert_count", "expert_used_count"}) {
    const auto field = keys.find(name);
    if (field && field->integer(0, kMaxSize) > 0) refuse(*field, "a model without experts");
  }
  if (const auto window = keys.find("attention.sliding_window")) {
    const int64_t keys_seen = window->integer(0, INT64_MAX);
    if (keys_seen > 0 && keys_seen < positions) {
      refuse(*window,
             "full attention in every layer: 0, or a window over all positions, of which "
             "context_length gives " +
                 std::to_string(positions));
    }
  }
  if (const auto causal = keys.find("attention.causal"); causal && !causal->boolean()) {
    refuse(*causal, "causal attention");
  }
  const auto type = keys.find("rope.scaling.type");
  if (type && type->text() != "none") {
    refuse(*type, "none, or the frequencies of Llama 3 in the tensor rope_freqs.weight");
  }
  // Without a type llama.cpp takes a factor for a linear one.
  for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
    const auto factor = keys.find(name);
    const bool in_use = factor && !type && factor->real(0, kMaxReal) != 0 && factor->real(0, kMaxReal) != 1;
    if (in_use) refuse(*factor, "1, no rope scaling");
  }
}

float float_at(const GgufTensor& tensor, size_t index) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// The llama3 rope scaling of every Llama that has one, but for its factor (8 or 32).
constexpr double kLowFrequencyFactor = 1;
constexpr double kHighFrequencyFactor = 4;
constexpr int64_t kOriginalPositions = 8192;

// By what llama3 scaling with `factor` divides the frequency of pair `pair`: transformers'
// modeling_rope_utils, which llama.cpp's converter evaluates into rope_freqs.weight.
double llama3_divisor(double factor, double theta, int64_t pair, int64_t head_dim) {
  const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(head_dim);
  const double wavelength = 2 * std::numbers::pi * std::pow(theta, exponent);
  const double turns = static_cast<double>(kOriginalPositions) / wavelength;
  if (turns > kHighFrequencyFactor) return 1;
  if (turns < kLowFrequencyFactor) return factor;
  const double smooth = (turns - kLowFrequencyFactor) / (kHighFrequencyFactor - kLowFrequencyFactor);
  return 1 / ((1 - smooth) / factor + smooth);
}

// config.json's rope_scaling for the divisors of frequencies in rope_freqs.weight; null when all are 1.
nlohmann::ordered_json rope_scaling(const GgufFile& file, const GgufTensor& divisors, double theta,
                                    int64_t head_dim) {
  // The converter computes in float32.
  constexpr double kTolerance = 1e-4;
  const std::string where = file.path() + ": tensor " + divisors.name;
  const int64_t pairs = head_dim / 2;
  if (divisors.layout->type != BlockType::kF32 || divisors.shape != std::vector<int64_t>{pairs}) {
    throw CorruptFile(where + " is " + divisors.layout->name + " with " +
                      std::to_string(divisors.bytes.size()) + " bytes, expected F32 with " +
                      std::to_string(pairs) + " numbers, half the dimension of heads");
  }
  double factor = 1;
  for (int64_t i = 0; i < pairs; ++i) {
    factor = std::max(factor, double{float_at(divisors, static_cast<size_t>(i))});
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const double divisor = float_at(divisors, static_cast<size_t>(i));
    const double expected = llama3_divisor(factor, theta, i, head_dim);
    if (std::abs(divisor - expected) <= kTolerance * expected) continue;
    throw Unsupported(where + " divides frequency " + std::to_string(i) + " by " + std::to_string(divisor) +
                      ", where the llama3 rope scaling of factor " + std::to_string(factor) + " over " +
                      std::to_string(kOriginalPositions) + " positions has " + std::to_string(expected) +
                      "; supported are that scaling, or none: use the model's original checkpoint, whose "
                      "config.json names its scaling");
  }
  if (factor == 1) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLowFrequencyFactor},
          {"high_freq_factor", kHighFrequencyFactor},
          {"original_max_position_embeddings", kOriginalPositions}};
}

std::string text(const std::vector<int64_t>& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

// Takes the tensors of a file under their names in a checkpoint.
class TensorMap {
 public:
  TensorMap(const GgufFile& file, std::vector<ImportedTensor>* tensors) : file_(&file), tensors_(tensors) {}

  bool has(const std::string& gguf_name) const { return file_->find_tensor(gguf_name) != nullptr; }

  void take(const std::string& gguf_name, const std::string& name, const std::vector<int64_t>& shape,
            int64_t interleaved_heads = 0) {
    const GgufTensor* tensor = file_->find_tensor(gguf_name);
    if (tensor == nullptr) {
      throw CorruptFile(file_->path() + " has " + std::to_string(file_->tensors().size()) +
                        " tensors but not " + gguf_name + ", which its metadata call for");
    }
    if (tensor->shape != shape) {
      throw CorruptFile(file_->path() + ": tensor " + gguf_name + " has shape " + text(tensor->shape) +
                        ", expected " + text(shape) + " from the metadata");
    }
    taken_.insert(gguf_name);
    tensors_->push_back({.name = name, .source = tensor, .interleaved_heads = interleaved_heads});
  }

  // `gguf_name`.weight and, when asked for, `gguf_name`.bias, of a product with `out` rows.
  void take_linear(const std::string& gguf_name, const std::string& name, int64_t out, int64_t in, bool bias,
                   int64_t interleaved_heads = 0) {
    take(gguf_name + ".weight", name + ".weight", {out, in}, interleaved_heads);
    if (bias) take(gguf_name + ".bias", name + ".bias", {out}, interleaved_heads);
  }

  void refuse_what_was_not_taken(const char* architecture, const std::string& but_for) const {
    for (const GgufTensor& tensor : file_->tensors()) {
      if (taken_.contains(tensor.name) || tensor.name == but_for) continue;
      throw Unsupported(file_->path() + ": tensor " + tensor.name + " of shape " + text(tensor.shape) +
                        " has no place in a " + architecture + "; supported are models of its usual tensors");
    }
  }

 private:
  const GgufFile* file_;
  std::vector<ImportedTensor>* tensors_;
  std::set<std::string, std::less<>> taken_;
};

struct Biases {
  bool qkv = false;
  bool output = false;
  bool mlp = false;
};

// The first layer shows which biases a model has that may do without.
Biases find_biases(const TensorMap& map, const KnownArchitecture& architecture) {
  const bool attention = architecture.biases_of_choice && map.has("blk.0.attn_q.bias");
  return {.qkv = architecture.qkv_biases || attention,
          .output = attention,
          .mlp = architecture.mlp_biases_of_choice && map.has("blk.0.ffn_gate.bias")};
}

void take_layer(TensorMap* map, const KnownArchitecture& architecture, const Sizes& sizes,
                const Biases& biases, int64_t layer) {
  const std::string from = "blk." + std::to_string(layer) + ".";
  const std::string to = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = to + "self_attn.", mlp = to + "mlp.";
  const int64_t q_rows = sizes.q_heads * sizes.head_dim, kv_rows = sizes.kv_heads * sizes.head_dim;
  const auto interleaved = [&](int64_t heads) { return architecture.interleaved ? heads : 0; };
  map->take(from + "attn_norm.weight", to + "input_layernorm.weight", {sizes.hidden});
  map->take_linear(from + "attn_q", attention + "q_proj", q_rows, sizes.hidden, biases.qkv,
                   interleaved(sizes.q_heads));
  map->take_linear(from + "attn_k", attention + "k_proj", kv_rows, sizes.hidden, biases.qkv,
                   interleaved(sizes.kv_heads));
  map->take_linear(from + "attn_v", attention + "v_proj", kv_rows, sizes.hidden, biases.qkv);
  if (architecture.qk_norm) {
    map->take(from + "attn_q_norm.weight", attention + "q_norm.weight", {sizes.head_dim});
    map->take(from + "attn_k_norm.weight", attention + "k_norm.weight", {sizes.head_dim});
  }
  map->take_linear(from + "attn_output", attention + "o_proj", sizes.hidden, q_rows, biases.output);
  map->take(from + "ffn_norm.weight", to + "post_attention_layernorm.weight", {sizes.hidden});
  map->take_linear(from + "ffn_gate", mlp + "gate_proj", sizes.intermediate, sizes.hidden, biases.mlp);
  map->take_linear(from + "ffn_up", mlp + "up_proj", sizes.intermediate, sizes.hidden, biases.mlp);
  map->take_linear(from + "ffn_down", mlp + "down_proj", sizes.hidden, sizes.intermediate, biases.mlp);
}

}  // namespace

GgufDecoder read_gguf_decoder(const GgufFile& file) {
  static const std::string kRopeDivisors = "rope_freqs.weight";
  const KnownArchitecture& architecture = find_architecture(file);
  const Keys keys(file, architecture);
  const Sizes sizes = read_sizes(file, keys, architecture);
  refuse_what_would_change_results(file, keys, sizes.positions);
  const auto theta_field = keys.find("rope.freq_base");
  const double theta = theta_field ? theta_field->real(1, kMaxReal) : 10000;
  const double epsilon = keys.at("attention.layer_norm_rms_epsilon").real(0, 1);

  GgufDecoder result;
  TensorMap map(file, &result.tensors);
  const Biases biases = find_biases(map, architecture);
  const bool tied = !map.has("output.weight");
  // The first tensor that is missing is named, so a count of layers beyond the tensors costs nothing.
  map.take("token_embd.weight", "model.embed_tokens.weight", {sizes.tokens, sizes.hidden});
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    take_layer(&map, architecture, sizes, biases, layer);
  }
  map.take("output_norm.weight", "model.norm.weight", {sizes.hidden});
  if (!tied) map.take("output.weight", "lm_head.weight", {sizes.tokens, sizes.hidden});
  map.refuse_what_was_not_taken(architecture.name, kRopeDivisors);

  result.architecture = architecture.name;
  result.config = {{"architectures", nlohmann::ordered_json::array({architecture.name})},
                   {"model_type", architecture.model_type},
                   {"hidden_act", "silu"},
                   {"vocab_size", sizes.tokens},
                   {"hidden_size", sizes.hidden},
                   {"intermediate_size", sizes.intermediate},
                   {"num_hidden_layers", sizes.layers},
                   {"num_attention_heads", sizes.q_heads},
                   {"num_key_value_heads", sizes.kv_heads},
                   {"head_dim", sizes.head_dim},
                   {"max_position_embeddings", sizes.positions},
                   {"rms_norm_eps", epsilon},
                   {"rope_theta", theta},
                   {"tie_word_embeddings", tied}};
  if (architecture.biases_of_choice) result.config["attention_bias"] = biases.output;
  if (architecture.mlp_biases_of_choice) result.config["mlp_bias"] = biases.mlp;
  if (const GgufTensor* divisors = file.find_tensor(kRopeDivisors)) {
    const auto scaling = rope_scaling(file, *divisors, theta, sizes.head_dim);
    if (!scaling.is_null()) {
      result.config["rope_scaling"] = scaling;
      result.notes.push_back(file.path() + ": " + kRopeDivisors + " is the llama3 rope scaling of factor " +
                             scaling["factor"].dump() + " over " + std::to_string(kOriginalPositions) +
                             " positions; config.json names it");
    }
  }
  return result;
}

int64_t interleaved_row(int64_t row, int64_t heads, int64_t rows) {
  const int64_t head_dim = rows / heads;
  const int64_t head = row / head_dim, channel = row % head_dim;
  const int64_t half = channel / (head_dim / 2), pair = channel % (head_dim / 2);
  return head * head_dim + 2 * pair + half;
}

}  // namespace allot::model
