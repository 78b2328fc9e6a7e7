#include "model/adapter.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "model/hub_cache.h"
#include "model/json_view.h"
#include "model/regex.h"
#include "model/tensor_shapes.h"

namespace allot::model {
namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorsFile = "adapter_model.safetensors";
constexpr const char* kMergeWithPeft =
    "; merge the adapter with PEFT (merge_and_unload), save the model and use that";

constexpr int64_t kMaxRank = std::numeric_limits<int32_t>::max();
constexpr double kMaxAlpha = 1e9;

// What PEFT puts before a module's name, and after it for the two factors.
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kFactorA = ".lora_A.weight";
constexpr std::string_view kFactorB = ".lora_B.weight";

// Fields that make an adapter more than a sum of B A, and what they do.
struct RefusedField {
  const char* name;
  const char* effect;
};
constexpr RefusedField kRefused[] = {
    {"use_dora", "DoRA scales the merged rows"},
    {"lora_bias", "it adds to biases"},
    {"fan_in_fan_out", "its weights are transposed, as those of GPT-2"},
    {"modules_to_save", "it replaces whole modules"},
    {"trainable_token_indices", "it replaces rows of the embedding"},
    {"target_parameters", "it adapts parameters that are no linear modules"},
    {"layer_replication", "it repeats layers of the base"},
    {"alora_invocation_tokens", "it is active from a token of the prompt on, not everywhere"},
    {"use_qalora", "it adapts pooled inputs of a quantised base"},
    {"use_bdlora", "its factors are block diagonal"},
    {"kasa_config", "KaSA changes the base weights and scales the rank"},
    {"monteclora_config", "it samples its weights"},
    {"arrow_config", "it routes between adapters"},
};
// Starts of training that leave the base weights as they are; others (pissa, olora, corda, loftq, lora_ga)
// subtract from them or quantise them.
constexpr std::array<std::string_view, 4> kPlainStarts = {"gaussian", "eva", "orthogonal", "mica"};

bool is_off(const nlohmann::json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

void refuse_what_is_no_sum(const JsonView& config) {
  const std::string type = config.at("peft_type").text();
  if (type != "LORA") {
    throw Unsupported(config.at("peft_type").where() + " is " + config.at("peft_type").shown() +
                      ", supported is \"LORA\"" + kMergeWithPeft);
  }
  for (const auto& [name, effect] : kRefused) {
    const auto field = config.find(name);
    if (!field || is_off(field->value())) continue;
    throw Unsupported(field->where() + " is " + field->shown() + ", which is not supported: " + effect +
                      kMergeWithPeft);
  }
  const std::string bias = config.text_or("bias", "none");
  if (bias != "none") {
    throw Unsupported(config.at("bias").where() + " is " + config.at("bias").shown() +
                      ", supported is \"none\": it changes the base's biases" + kMergeWithPeft);
  }
  const auto start = config.find("init_lora_weights");
  if (!start || start->value().is_boolean()) return;
  std::string name = start->text();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::ranges::find(kPlainStarts, name) != kPlainStarts.end()) return;
  throw Unsupported(start->where() + " is " + start->shown() +
                    ", supported are true, false, gaussian, eva, orthogonal, mica: others change the base "
                    "weights, to which the adapter then does not fit; let PEFT convert it (save_pretrained "
                    "with path_initial_model_for_weight_conversion)");
}

// rank_pattern or alpha_pattern: what holds for the modules whose names a pattern matches.
class Patterns {
 public:
  using Read = double (*)(const JsonView& value);

  Patterns(const JsonView& config, const char* field, Read read) {
    const auto patterns = config.find(field);
    if (!patterns) return;
    if (!patterns->value().is_object()) patterns->fail("an object from patterns to numbers");
    where_ = patterns->where();
    for (const auto& item : patterns->value().items()) {
      // As PEFT matches (get_pattern_key): the whole name, or its end after a dot.
      entries_.push_back({item.key(), Regex::from_pcre2("\\A(.*\\.)?(" + item.key() + ")$"),
                          read(patterns->at(item.key()))});
    }
  }

  // PEFT takes the first match in the order of the file. Readers of JSON need not keep that order, so two
  // that contradict each other are refused.
  double value_for(const std::string& module, double otherwise) const {
    Regex::Scratch scratch;
    const Entry* found = nullptr;
    for (const Entry& entry : entries_) {
      if (!entry.pattern.find(module, 0, scratch)) continue;
      if (found != nullptr && found->value != entry.value) {
        throw Unsupported(where_ + ": both \"" + found->text + "\" and \"" + entry.text + "\" match " +
                          module + " and differ; give it one value");
      }
      found = &entry;
    }
    return found != nullptr ? found->value : otherwise;
  }

 private:
  struct Entry {
    std::string text;
    Regex pattern;
    double value;
  };
  std::string where_;
  std::vector<Entry> entries_;
};

double read_rank(const JsonView& value) {
  return static_cast<double>(value.integer(1, kMaxRank));
}
double read_alpha(const JsonView& value) {
  return value.real(-kMaxAlpha, kMaxAlpha);
}

// The names of the linear modules inside the layers, with the shapes of their weights.
std::map<std::string, std::vector<int64_t>> linear_modules(const ModelConfig& config) {
  constexpr std::string_view kWeight = ".weight";
  std::map<std::string, std::vector<int64_t>> modules;
  for (auto& [name, shape] : decoder_tensor_shapes(config)) {
    if (!name.starts_with("model.layers.") || !name.ends_with(kWeight) || shape.size() != 2) continue;
    modules.emplace(name.substr(0, name.size() - kWeight.size()), std::move(shape));
  }
  return modules;
}

// The two factors of a module, as found in the file.
struct Factors {
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
};

class TensorReader {
 public:
  // `base` says which base the adapter was made for, for messages; it may be empty.
  TensorReader(std::string file, const std::string& base, const ModelConfig& config)
      : file_(std::move(file)),
        other_base_("; the adapter is for another base" +
                    (base.empty() ? std::string() : " (its base_model_name_or_path is " + base + ")")),
        layers_(config.num_layers),
        shapes_(linear_modules(config)) {}

  std::map<std::string, Factors> pairs(const SafetensorsFile& file) const {
    std::map<std::string, Factors> found;
    for (const TensorView& tensor : file.tensors()) {
      const std::string module = module_of(tensor.name);
      if (tensor.dtype != TensorDType::kF32 && tensor.dtype != TensorDType::kBF16 &&
          tensor.dtype != TensorDType::kF16) {
        throw Unsupported(place(tensor.name) + " is stored as " + dtype_name(tensor.dtype) +
                          ", expected F32, BF16 or F16; convert the adapter to one of them");
      }
      (tensor.name.ends_with(kFactorA) ? found[module].a : found[module].b) = &tensor;
    }
    if (found.empty()) throw CorruptFile(file_ + " holds no tensor; an adapter has at least one pair");
    for (const auto& [module, factors] : found) check_pair(module, factors);
    return found;
  }

  void check_rank(const std::string& module, const Factors& factors, int64_t rank) const {
    if (factors.a->shape[0] == rank && factors.b->shape[1] == rank) return;
    throw CorruptFile(place(factors.a->name) + " has rank " + std::to_string(factors.a->shape[0]) +
                      ", the lora_B beside it " + std::to_string(factors.b->shape[1]) + ", and " +
                      kConfigFile + " gives " + module + " the rank " + std::to_string(rank) +
                      " (r, or rank_pattern); expected one rank; use files of one adapter");
  }

 private:
  std::string place(const std::string& tensor) const { return file_ + ": tensor " + tensor; }

  // The module that a tensor belongs to.
  std::string module_of(const std::string& tensor) const {
    const bool is_factor = tensor.ends_with(kFactorA) || tensor.ends_with(kFactorB);
    if (tensor.starts_with(kPrefix) && is_factor) {
      const size_t end = tensor.size() - kFactorA.size();
      std::string module = tensor.substr(kPrefix.size(), end - kPrefix.size());
      if (shapes_.contains(module)) return module;
      if (!is_outside_layers(module)) {
        throw Unsupported(place(tensor) + " is for " + module +
                          ", which is no linear module of this model of " + std::to_string(layers_) +
                          " layers" + other_base_);
      }
    }
    if (is_outside_layers(tensor)) {
      throw Unsupported(place(tensor) +
                        " adapts embedding or output head, supported are the linear modules of the layers "
                        "(q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj)" +
                        kMergeWithPeft);
    }
    throw Unsupported(place(tensor) + " is not known, expected names like " + std::string(kPrefix) +
                      "model.layers.0.self_attn.q_proj" + std::string(kFactorA) + " and " +
                      std::string(kFactorB) + kMergeWithPeft);
  }

  static bool is_outside_layers(const std::string& name) {
    return name.find("embed_tokens") != std::string::npos || name.find("lm_head") != std::string::npos ||
           name.find("lora_embedding_") != std::string::npos;
  }

  void check_pair(const std::string& module, const Factors& factors) const {
    if (factors.a == nullptr || factors.b == nullptr) {
      const bool lacks_a = factors.a == nullptr;
      throw CorruptFile(place((lacks_a ? factors.b : factors.a)->name) + " has no " +
                        (lacks_a ? "lora_A" : "lora_B") +
                        " beside it, expected both factors of a module; save or download the adapter again");
    }
    const std::vector<int64_t>& shape = shapes_.at(module);
    const auto check = [&](const TensorView& tensor, size_t axis, int64_t size, const std::string& expected) {
      if (tensor.shape.size() == 2 && tensor.shape[axis] == size) return;
      throw Unsupported(place(tensor.name) + " has shape " + shape_text(tensor.shape) + ", expected " +
                        expected + " since the model's " + module + ".weight has " + shape_text(shape) +
                        other_base_);
    };
    check(*factors.a, 1, shape[1], fmt::format("[rank, {}]", shape[1]));
    check(*factors.b, 0, shape[0], fmt::format("[{}, rank]", shape[0]));
  }

  std::string file_;
  std::string other_base_;
  int32_t layers_;
  std::map<std::string, std::vector<int64_t>> shapes_;
};

// The directory, once both files are seen to be there.
const std::filesystem::path& checked(const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / kConfigFile)) {
    throw NotFound(directory.string() + " has no " + kConfigFile +
                   "; --adapter takes the directory of a LoRA adapter as PEFT saves it (" + kConfigFile +
                   ", " + kTensorsFile + ")" + download_hint(directory));
  }
  if (!std::filesystem::exists(directory / kTensorsFile)) {
    throw NotFound(directory.string() + " has " + kConfigFile + " but no " + kTensorsFile +
                   "; save the adapter as safetensors, or download the whole directory" +
                   download_hint(directory));
  }
  return directory;
}

}  // namespace

Adapter::Adapter(std::filesystem::path directory, SafetensorsFile file)
    : directory_(std::move(directory)), file_(std::move(file)) {}

Adapter Adapter::open(const std::filesystem::path& directory, const ModelConfig& config,
                      MappingAccess access) {
  const std::filesystem::path config_path = checked(directory) / kConfigFile;
  const nlohmann::json document = parse_json_file(config_path);
  const JsonView settings(document, config_path.string());
  refuse_what_is_no_sum(settings);
  if (config.ternary) {
    throw Unsupported(config_path.string() +
                      " adapts projections whose weights are ternary in the base; supported are bases whose "
                      "weights are full numbers, to which an update can be added");
  }
  const auto rank = static_cast<double>(settings.at("r").integer(1, kMaxRank));
  const double alpha = read_alpha(settings.at("lora_alpha"));
  const Patterns ranks(settings, "rank_pattern", read_rank);
  const Patterns alphas(settings, "alpha_pattern", read_alpha);

  const std::filesystem::path tensors_path = directory / kTensorsFile;
  Adapter adapter(directory, SafetensorsFile(tensors_path, access));
  adapter.rank_stabilised_ = settings.boolean_or("use_rslora", false);
  adapter.base_model_ = settings.text_or("base_model_name_or_path", "");
  const TensorReader reader(tensors_path.string(), adapter.base_model_, config);
  for (const auto& [name, factors] : reader.pairs(adapter.file_)) {
    AdaptedModule module{.rank = static_cast<int64_t>(ranks.value_for(name, rank)),
                         .alpha = alphas.value_for(name, alpha),
                         .update = {}};
    reader.check_rank(name, factors, module.rank);
    const auto divisor = static_cast<double>(module.rank);
    const double scaling = module.alpha / (adapter.rank_stabilised_ ? std::sqrt(divisor) : divisor);
    module.update = {.a = *factors.a, .b = *factors.b, .scaling = static_cast<float>(scaling)};
    adapter.modules_.emplace(name, std::move(module));
  }
  return adapter;
}

std::optional<LowRankUpdate> Adapter::update_of(const std::string& tensor) const {
  constexpr std::string_view kWeight = ".weight";
  if (!tensor.ends_with(kWeight)) return std::nullopt;
  const auto found = modules_.find(tensor.substr(0, tensor.size() - kWeight.size()));
  if (found == modules_.end()) return std::nullopt;
  return found->second.update;
}

AdapterIdentity Adapter::identity() const {
  std::string digest_input = "low-rank updates\n";
  for (const auto& [name, module] : modules_) {
    append_sample(module.update.a, &digest_input);
    append_sample(module.update.b, &digest_input);
    // Its bits, so that no digit is lost.
    digest_input += "scaling " + std::to_string(std::bit_cast<uint32_t>(module.update.scaling)) + "\n";
  }
  return {.id = model_name(directory_), .fingerprint = sha256_hex(digest_input)};
}

}  // namespace allot::model
