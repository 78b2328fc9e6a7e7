#include "model/model_config.h"

#include <gmock/gmock.h>

#include "base/json.h"

#include "base/error.h"
#include "tests/model/files/test_directory.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", 128256},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", 32},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"eos_token_id", {128001, 128009}},
          {"bos_token_id", 128000}};
}

json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

json qwen2() {
  json config = llama();
  config.update({{"architectures", {"Qwen2ForCausalLM"}},
                 {"hidden_size", 896},
                 {"num_attention_heads", 14},
                 {"num_key_value_heads", 2},
                 {"tie_word_embeddings", true},
                 {"use_sliding_window", false},
                 {"sliding_window", 32768},
                 {"rope_theta", 1000000.0},
                 {"eos_token_id", 151643}});
  return config;
}

json bitnet() {
  json config = llama();
  config.update({{"architectures", {"BitNetForCausalLM"}},
                 {"hidden_size", 2560},
                 {"intermediate_size", 6912},
                 {"num_hidden_layers", 30},
                 {"num_attention_heads", 20},
                 {"num_key_value_heads", 5},
                 {"hidden_act", "relu2"}});
  return config;
}

json qwen3() {
  json config = qwen2();
  config.update({{"architectures", {"Qwen3ForCausalLM"}},
                 {"hidden_size", 1024},
                 {"num_attention_heads", 16},
                 {"num_key_value_heads", 8},
                 {"head_dim", 128},
                 {"attention_bias", false}});
  return config;
}

// As Mistral 7B v0.1 has it, but for the window.
json mistral() {
  json config = llama();
  config.update({{"architectures", {"MistralForCausalLM"}},
                 {"vocab_size", 32000},
                 {"max_position_embeddings", 32768},
                 {"sliding_window", nullptr}});
  return config;
}

class ModelConfigTest : public testing::Test {
 protected:
  ModelConfig read(const json& config) {
    directory_.write("config.json", config.dump());
    return read_model_config(directory_.path());
  }
  template <typename Error>
  std::string message_for(const json& config) {
    const std::string message = message_of<Error>([&] { read(config); });
    EXPECT_THAT(message, Names(directory_.path() / "config.json"));
    return message;
  }
  // `change` is merged into a good config; null removes a field.
  template <typename Error>
  std::string message_for_change(const json& change) {
    json config = llama();
    config.merge_patch(change);
    return message_for<Error>(config);
  }

  TestDirectory directory_;
};

TEST_F(ModelConfigTest, ReadsALlama) {
  const ModelConfig config = read(llama());
  EXPECT_EQ(config.architecture, Architecture::kLlama);
  EXPECT_EQ(config.architecture_name, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 128256);
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.intermediate_size, 14336);
  EXPECT_EQ(config.num_layers, 32);
  EXPECT_EQ(config.num_q_heads, 32);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000.0);
  EXPECT_FALSE(config.rope_scaling);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.stored_dtype, "bfloat16");
}

TEST_F(ModelConfigTest, ReadsAQwen2WithItsBiases) {
  const ModelConfig config = read(qwen2());
  EXPECT_EQ(config.architecture, Architecture::kQwen2);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_TRUE(config.tie_word_embeddings);
}

TEST_F(ModelConfigTest, ReadsAQwen3WithItsNormsOfQueryAndKeyHeads) {
  json config = qwen3();
  ModelConfig result = read(config);
  EXPECT_EQ(result.architecture, Architecture::kQwen3);
  EXPECT_TRUE(result.qk_norm);
  EXPECT_EQ(result.head_dim, 128);  // not hidden_size / heads
  EXPECT_FALSE(result.attention_bias);
  EXPECT_FALSE(result.attention_output_bias);
  EXPECT_FALSE(read(llama()).qk_norm);
  EXPECT_FALSE(read(qwen2()).qk_norm);
  config["attention_bias"] = true;
  config.erase("head_dim");
  result = read(config);
  EXPECT_EQ(result.head_dim, 128);
  EXPECT_TRUE(result.attention_bias);
  EXPECT_TRUE(result.attention_output_bias);
  EXPECT_FALSE(result.mlp_bias);
}

TEST_F(ModelConfigTest, ReadsAMistralThatHasNoBiases) {
  json config = mistral();
  config["attention_bias"] = config["mlp_bias"] = true;  // transformers' Mistral does not look at them
  const ModelConfig result = read(config);
  EXPECT_EQ(result.architecture, Architecture::kMistral);
  EXPECT_EQ(result.head_dim, 128);
  EXPECT_FALSE(result.attention_bias);
  EXPECT_FALSE(result.attention_output_bias);
  EXPECT_FALSE(result.mlp_bias);
  EXPECT_FALSE(result.qk_norm);
}

TEST_F(ModelConfigTest, ReadsABitNetWithItsNormsActivationAndDefaults) {
  json config = bitnet();
  ModelConfig result = read(config);
  EXPECT_EQ(result.architecture, Architecture::kBitNet);
  EXPECT_TRUE(result.sub_norms);
  EXPECT_EQ(result.activation, kernels::Activation::kReluSquared);
  EXPECT_EQ(result.ternary, std::nullopt);
  EXPECT_FALSE(result.attention_bias);
  for (const char* name : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "hidden_act"})
    config.erase(name);
  result = read(config);
  EXPECT_EQ(result.num_kv_heads, 5);
  EXPECT_EQ(result.rms_norm_eps, 1e-5);
  EXPECT_EQ(result.rope_theta, 500000);
  EXPECT_EQ(result.activation, kernels::Activation::kReluSquared);
  config.update({{"attention_bias", true}, {"hidden_act", "silu"}});
  result = read(config);
  EXPECT_TRUE(result.attention_bias);
  EXPECT_TRUE(result.attention_output_bias);
  EXPECT_EQ(result.activation, kernels::Activation::kSilu);
  EXPECT_FALSE(read(llama()).sub_norms);
  EXPECT_EQ(read(llama()).activation, kernels::Activation::kSilu);
  config["head_dim"] = 64;
  EXPECT_THAT(message_for<CorruptFile>(config), Names("hidden_size", 2560, 1280));
}

TEST_F(ModelConfigTest, ReadsHowABitNetsTernaryWeightsAreStored) {
  json config = bitnet();
  const auto stored = [&](const json& fields) {
    json quantization = {{"quant_method", "bitnet"}};
    quantization.update(fields);
    config["quantization_config"] = quantization;
    return read(config).ternary;
  };
  // What transformers assumes where nothing is said.
  EXPECT_EQ(stored(json::object()), TernaryWeights::kPackedOver);
  EXPECT_EQ(stored({{"linear_class", "bitlinear"}, {"quantization_mode", "online"}}),
            TernaryWeights::kPackedOver);
  EXPECT_EQ(stored({{"linear_class", "autobitlinear"}}), TernaryWeights::kPacked);
  EXPECT_EQ(stored({{"linear_class", "autobitlinear"}, {"modules_to_not_convert", {"lm_head"}}}),
            TernaryWeights::kPacked);
  EXPECT_EQ(stored({{"linear_class", "autobitlinear"}, {"quantization_mode", "online"}}),
            TernaryWeights::kMaster);

  const auto refusal = [&]<class Fault>(const json& fields, const Fault*) {
    return message_of<Fault>([&] { (void)stored(fields); });
  };
  const Unsupported* const unsupported = nullptr;
  const CorruptFile* const corrupt = nullptr;
  EXPECT_THAT(refusal({{"use_rms_norm", true}}, unsupported), Names("quantization_config.use_rms_norm"));
  EXPECT_THAT(refusal({{"modules_to_not_convert", {"q_proj"}}}, unsupported),
              Names("quantization_config.modules_to_not_convert", "q_proj", "lm_head"));
  EXPECT_THAT(refusal({{"linear_class", "linear"}}, corrupt),
              Names("quantization_config.linear_class", "linear", "bitlinear"));
  EXPECT_THAT(refusal({{"quantization_mode", "later"}}, corrupt),
              Names("quantization_config.quantization_mode", "later", "online"));
  EXPECT_THAT(refusal({{"quant_method", "awq"}}, unsupported), Names("quantization_config", "awq", "bitnet"));
  config["attention_bias"] = true;
  EXPECT_THAT(refusal(json::object(), unsupported), Names("attention_bias"));
  config = llama();
  EXPECT_THAT(refusal(json::object(), unsupported),
              Names("quantization_config", "LlamaForCausalLM", "BitNetForCausalLM"));
}

TEST_F(ModelConfigTest, KvHeadsThatAreLeftOutAreThoseOfTheArchitecture) {
  for (const auto& [config, expected] : {std::pair(llama(), 32), {qwen3(), 32}, {mistral(), 8}}) {
    json changed = config;
    changed["num_attention_heads"] = 32;
    changed["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read(changed).num_kv_heads, 32) << changed["architectures"];
    changed.erase("num_key_value_heads");
    EXPECT_EQ(read(changed).num_kv_heads, expected) << changed["architectures"];
  }
  json config = qwen2();
  config.erase("num_key_value_heads");
  EXPECT_THAT(message_for<CorruptFile>(config), Names("num_key_value_heads", 32, "default", 14));
}

TEST_F(ModelConfigTest, LlamasAttentionBiasIsAlsoOnTheOutput) {
  json config = llama();
  config["attention_bias"] = true;
  config["mlp_bias"] = true;
  EXPECT_TRUE(read(config).attention_bias);
  EXPECT_TRUE(read(config).attention_output_bias);
  EXPECT_TRUE(read(config).mlp_bias);
}

TEST_F(ModelConfigTest, DefaultsAreThoseOfTransformers) {
  json config = llama();
  for (const char* name : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "hidden_act",
                           "tie_word_embeddings", "torch_dtype", "initializer_range"}) {
    config.erase(name);
  }
  config["head_dim"] = nullptr;
  const ModelConfig result = read(config);
  EXPECT_EQ(result.num_kv_heads, 32);
  EXPECT_EQ(result.head_dim, 128);
  EXPECT_EQ(result.rms_norm_eps, 1e-6);
  EXPECT_EQ(result.rope_theta, 10000);
  EXPECT_FALSE(result.tie_word_embeddings);
  EXPECT_EQ(result.stored_dtype, "");
  EXPECT_EQ(result.initializer_range, 0.02);
}

TEST_F(ModelConfigTest, HeadDimMayDifferFromHiddenOverHeads) {
  json config = llama();
  config["head_dim"] = 64;
  EXPECT_EQ(read(config).head_dim, 64);
}

TEST_F(ModelConfigTest, BothSpellingsOfRopeGiveTheSame) {
  json version4 = llama();
  version4["rope_scaling"] = llama3_scaling();
  json version5 = llama();
  version5.erase("rope_theta");
  version5["rope_parameters"] = llama3_scaling();
  version5["rope_parameters"]["rope_theta"] = 500000.0;
  for (const json& config : {version4, version5}) {
    const ModelConfig result = read(config);
    EXPECT_EQ(result.rope_theta, 500000.0);
    ASSERT_TRUE(result.rope_scaling);
    EXPECT_EQ(result.rope_scaling->factor, 32);
    EXPECT_EQ(result.rope_scaling->low_freq_factor, 1);
    EXPECT_EQ(result.rope_scaling->high_freq_factor, 4);
    EXPECT_EQ(result.rope_scaling->original_max_position_embeddings, 8192);
  }
}

TEST_F(ModelConfigTest, ADefaultRopeNeedsNoScaling) {
  json config = llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  EXPECT_FALSE(read(config).rope_scaling);
  EXPECT_EQ(read(config).rope_theta, 20000.0);
}

TEST_F(ModelConfigTest, BothNamesOfTheDTypeAreRead) {
  json config = llama();
  config["dtype"] = "float32";  // the newer name wins
  EXPECT_EQ(read(config).stored_dtype, "float32");
  config.erase("dtype");
  config["torch_dtype"] = "torch.float16";
  EXPECT_EQ(read(config).stored_dtype, "float16");
  config["torch_dtype"] = "int8";
  EXPECT_THAT(message_for<Unsupported>(config), Names("torch_dtype", "int8", "bfloat16"));
}

TEST_F(ModelConfigTest, AMissingFileIsNotFound) {
  EXPECT_THAT(message_of<NotFound>([&] { read_model_config(directory_.path()); }), Names("config.json"));
}

TEST_F(ModelConfigTest, BrokenJsonIsCorruptWithTheOffset) {
  directory_.write("config.json", R"({"vocab_size": 12,, })");
  EXPECT_THAT(message_of<CorruptFile>([&] { read_model_config(directory_.path()); }),
              Names("config.json", 19, 21));
}

TEST_F(ModelConfigTest, AnUnknownArchitectureIsRefusedByNameWithTheSupportedOnes) {
  EXPECT_THAT(message_for_change<Unsupported>({{"architectures", {"MambaForCausalLM"}}}),
              Names("[\"MambaForCausalLM\"]", "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                    "MistralForCausalLM"));
}

TEST_F(ModelConfigTest, EveryNeededFieldIsMissedByName) {
  for (const char* name : {"architectures", "vocab_size", "hidden_size", "intermediate_size",
                           "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
    EXPECT_THAT(message_for_change<CorruptFile>({{name, nullptr}}), Names(name, "missing"));
  }
}

TEST_F(ModelConfigTest, ImpossibleValuesAreCorruptWithFieldAndValue) {
  EXPECT_THAT(message_for_change<CorruptFile>({{"hidden_size", 0}}), Names("hidden_size", 0, 1));
  EXPECT_THAT(message_for_change<CorruptFile>({{"vocab_size", "many"}}), Names("vocab_size", "many"));
  EXPECT_THAT(message_for_change<CorruptFile>({{"num_hidden_layers", 2.5}}), Names("num_hidden_layers", 2.5));
  EXPECT_THAT(message_for_change<CorruptFile>({{"vocab_size", 1e10}}), Names("vocab_size", "10000000000.0"));
  EXPECT_THAT(message_for_change<CorruptFile>({{"num_key_value_heads", 5}}),
              Names("num_key_value_heads", 5, "num_attention_heads", 32));
  EXPECT_THAT(message_for_change<CorruptFile>({{"hidden_size", 4100}}),
              Names("hidden_size", 4100, "num_attention_heads", 32));
  EXPECT_THAT(message_for_change<CorruptFile>({{"head_dim", 33}}), Names("head_dim", 33, "even"));
  EXPECT_THAT(message_for_change<CorruptFile>({{"rms_norm_eps", -1}}), Names("rms_norm_eps", -1));
  EXPECT_THAT(message_for_change<CorruptFile>({{"rope_theta", 0}}), Names("rope_theta", 0));
  EXPECT_THAT(message_for_change<CorruptFile>({{"tie_word_embeddings", 1}}), Names("tie_word_embeddings", 1));
}

TEST_F(ModelConfigTest, RopeScalingIsCheckedFieldByField) {
  json scaling = llama3_scaling();
  scaling["high_freq_factor"] = 1.0;
  EXPECT_THAT(message_for_change<CorruptFile>({{"rope_scaling", scaling}}),
              Names("rope_scaling.high_freq_factor", "1.0", "low_freq_factor", "1.0"));
  scaling = llama3_scaling();
  scaling.erase("factor");
  EXPECT_THAT(message_for_change<CorruptFile>({{"rope_parameters", scaling}}),
              Names("rope_parameters.factor", "missing"));
}

TEST_F(ModelConfigTest, OtherRopeTypesAreRefusedByName) {
  EXPECT_THAT(message_for_change<Unsupported>({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
              Names("rope_scaling", "linear", "default", "llama3"));
  EXPECT_THAT(message_for_change<Unsupported>({{"rope_parameters", {{"rope_type", "yarn"}}}}),
              Names("rope_parameters", "yarn"));
  EXPECT_THAT(message_for_change<Unsupported>(
                  {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
              Names("rope_parameters", "layer"));
  EXPECT_THAT(message_for_change<Unsupported>({{"partial_rotary_factor", 0.5}}),
              Names("partial_rotary_factor", 0.5));
}

TEST_F(ModelConfigTest, ASlidingWindowInUseIsRefused) {
  for (json config : {qwen2(), qwen3()}) {
    config["use_sliding_window"] = true;
    EXPECT_THAT(message_for<Unsupported>(config),
                Names("sliding_window", 32768, "max_position_embeddings", 131072, "use_sliding_window"));
  }
  json config = mistral();
  config["sliding_window"] = 4095;
  EXPECT_THAT(message_for<Unsupported>(config), Names("sliding_window", 4095, 32768));
  config.erase("sliding_window");  // transformers then takes 4096
  EXPECT_THAT(message_for<Unsupported>(config), Names("sliding_window", 4096, "default"));
  config = qwen2();
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(message_for<Unsupported>(config), Names("layer_types[1]", "sliding_attention"));
}

TEST_F(ModelConfigTest, ASlidingWindowOverAllPositionsOrNoneIsFullAttention) {
  json config = mistral();
  EXPECT_NO_THROW(read(config));
  config["sliding_window"] = 32768;
  EXPECT_NO_THROW(read(config));
  config.erase("sliding_window");
  config["max_position_embeddings"] = 4096;
  EXPECT_NO_THROW(read(config));
  config = qwen2();
  config["use_sliding_window"] = true;
  config["sliding_window"] = 131072;
  EXPECT_NO_THROW(read(config));
  config = llama();
  config.update({{"use_sliding_window", true}, {"sliding_window", 16}});  // no fields of a Llama
  EXPECT_NO_THROW(read(config));
}

TEST_F(ModelConfigTest, OtherActivationsAndQuantisedWeightsAreRefused) {
  EXPECT_THAT(message_for_change<Unsupported>({{"hidden_act", "gelu"}}), Names("hidden_act", "gelu", "silu"));
  EXPECT_THAT(message_for_change<Unsupported>({{"quantization_config", {{"quant_method", "gptq"}}}}),
              Names("quantization_config", "gptq"));
}

class GenerationDefaultsTest : public ModelConfigTest {};

TEST_F(GenerationDefaultsTest, ConfigAloneGivesTheTokens) {
  directory_.write("config.json", llama().dump());
  const GenerationDefaults defaults = read_generation_defaults(directory_.path());
  EXPECT_THAT(defaults.eos_token_ids, ElementsAre(128001, 128009));
  EXPECT_EQ(defaults.bos_token_id, 128000);
  EXPECT_EQ(defaults.pad_token_id, std::nullopt);
  EXPECT_EQ(defaults.temperature, 1);
  EXPECT_FALSE(defaults.do_sample);
}

TEST_F(GenerationDefaultsTest, GenerationConfigWinsFieldByField) {
  directory_.write("config.json", llama().dump());
  directory_.write("generation_config.json", R"({"eos_token_id": 7, "pad_token_id": -1, "do_sample": true,
                                                 "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.05})");
  const GenerationDefaults defaults = read_generation_defaults(directory_.path());
  EXPECT_THAT(defaults.eos_token_ids, ElementsAre(7));
  EXPECT_EQ(defaults.bos_token_id, 128000);
  EXPECT_EQ(defaults.pad_token_id, std::nullopt);
  EXPECT_EQ(defaults.temperature, 0.7);
  EXPECT_EQ(defaults.top_p, 0.8);
  EXPECT_EQ(defaults.repetition_penalty, 1.05);
  EXPECT_TRUE(defaults.do_sample);
}

TEST_F(GenerationDefaultsTest, ImpossibleValuesAreCorruptWithFileFieldAndValue) {
  directory_.write("config.json", llama().dump());
  const auto message = [&](const char* content) {
    directory_.write("generation_config.json", content);
    return message_of<CorruptFile>([&] { read_generation_defaults(directory_.path()); });
  };
  EXPECT_THAT(message(R"({"top_p": 1.5})"), Names("generation_config.json", "top_p", 1.5));
  EXPECT_THAT(message(R"({"temperature": -1})"), Names("temperature", -1));
  EXPECT_THAT(message(R"({"repetition_penalty": 0})"), Names("repetition_penalty", 0));
  EXPECT_THAT(message(R"({"eos_token_id": [1, "two"]})"), Names("eos_token_id[1]", "two"));
}

}  // namespace
}  // namespace allot::model
