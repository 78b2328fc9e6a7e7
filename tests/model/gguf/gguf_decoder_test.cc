#include "model/gguf/gguf_decoder.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "tests/model/files/test_directory.h"
#include "tests/model/gguf/small_gguf.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

class GgufDecoderTest : public testing::Test {
 protected:
  // Opened anew for each call; the last one stays open.
  GgufDecoder read(const GgufBytes& bytes) {
    file_.emplace(directory_.write("x.gguf", bytes.file()));
    return read_gguf_decoder(*file_);
  }

  template <class Expected = CorruptFile>
  std::string message_for(const GgufBytes& bytes) {
    const std::string message = message_of<Expected>([&] { (void)read(bytes); });
    EXPECT_THAT(message, Names(directory_.path() / "x.gguf"));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
  // With one key of a small Llama set to another value.
  template <class Expected = CorruptFile, class Value>
  std::string message_with(const std::string& key, const Value& value) {
    return message_for<Expected>(small_gguf("llama").set(key, value));
  }

  static std::map<std::string, ImportedTensor> by_name(const GgufDecoder& decoder) {
    std::map<std::string, ImportedTensor> tensors;
    for (const ImportedTensor& tensor : decoder.tensors) tensors[tensor.name] = tensor;
    EXPECT_EQ(tensors.size(), decoder.tensors.size());
    return tensors;
  }

  TestDirectory directory_;
  std::optional<GgufFile> file_;
};

TEST_F(GgufDecoderTest, OfALlamaHasItsFieldsAndTensorsUnderTheirNames) {
  const GgufDecoder decoder = read(small_gguf("llama"));
  EXPECT_EQ(decoder.architecture, "LlamaForCausalLM");
  EXPECT_EQ(decoder.config, ordered_json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "vocab_size": 264,
    "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64,
    "rms_norm_eps": 9.999999747378752e-06, "rope_theta": 50000.0, "tie_word_embeddings": true,
    "attention_bias": false, "mlp_bias": false})"));
  const auto tensors = by_name(decoder);
  EXPECT_EQ(tensors.size(), 20u);
  const auto source = [&](const char* name) { return tensors.at(name).source->name; };
  EXPECT_EQ(source("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(source("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(source("model.layers.1.input_layernorm.weight"), "blk.1.attn_norm.weight");
  EXPECT_EQ(source("model.layers.1.post_attention_layernorm.weight"), "blk.1.ffn_norm.weight");
  EXPECT_EQ(source("model.layers.0.self_attn.o_proj.weight"), "blk.0.attn_output.weight");
  EXPECT_EQ(source("model.layers.0.mlp.gate_proj.weight"), "blk.0.ffn_gate.weight");
  EXPECT_EQ(source("model.layers.0.mlp.up_proj.weight"), "blk.0.ffn_up.weight");
  EXPECT_EQ(source("model.layers.0.mlp.down_proj.weight"), "blk.0.ffn_down.weight");
  for (const auto& [name, tensor] : tensors) {
    const int64_t heads = name.ends_with("q_proj.weight") ? 2 : name.ends_with("k_proj.weight") ? 1 : 0;
    EXPECT_EQ(tensor.interleaved_heads, heads) << name;
  }
}

TEST_F(GgufDecoderTest, OfQwen2HasBiasesAndRowsThatStay) {
  const GgufDecoder decoder = read(small_gguf("qwen2"));
  EXPECT_EQ(decoder.architecture, "Qwen2ForCausalLM");
  EXPECT_FALSE(decoder.config.contains("attention_bias"));
  const auto tensors = by_name(decoder);
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.k_proj.bias").source->name, "blk.1.attn_k.bias");
  for (const auto& [name, tensor] : tensors) EXPECT_EQ(tensor.interleaved_heads, 0) << name;
}

TEST_F(GgufDecoderTest, OfQwen3HasNormsOfHeads) {
  GgufBytes bytes = small_gguf("qwen3");
  const GgufDecoder decoder = read(bytes);
  EXPECT_EQ(decoder.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(decoder.config["attention_bias"], false);
  EXPECT_EQ(by_name(decoder).at("model.layers.0.self_attn.q_norm.weight").source->name,
            "blk.0.attn_q_norm.weight");
  // Without the key heads are 128 wide, as transformers has it.
  EXPECT_THAT(message_for(bytes.remove("qwen3.attention.key_length")), Names("blk.0.attn_q.weight", 256));
}

TEST_F(GgufDecoderTest, AnOutputMatrixOfItsOwnIsTheHead) {
  const GgufDecoder decoder =
      read(small_gguf("llama").tensor(floats("output.weight", {264, 8}, std::vector<float>(264 * 8))));
  EXPECT_EQ(decoder.config["tie_word_embeddings"], false);
  EXPECT_EQ(by_name(decoder).at("lm_head.weight").source->name, "output.weight");
}

TEST_F(GgufDecoderTest, BiasesOfALlamaAreTakenWhenAllAreThere) {
  GgufBytes bytes = small_gguf("llama");
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const auto bias = [&](const char* name, uint64_t size) {
      bytes.tensor(floats(layer + std::string(name), {size}, std::vector<float>(size)));
    };
    bias("attn_q.bias", 8);
    bias("attn_k.bias", 4);
    bias("attn_v.bias", 4);
    bias("attn_output.bias", 8);
    bias("ffn_gate.bias", 6);
    bias("ffn_up.bias", 6);
    bias("ffn_down.bias", 8);
  }
  const GgufDecoder decoder = read(bytes);
  EXPECT_EQ(decoder.config["attention_bias"], true);
  EXPECT_EQ(decoder.config["mlp_bias"], true);
  EXPECT_EQ(by_name(decoder).at("model.layers.1.self_attn.k_proj.bias").interleaved_heads, 1);
  EXPECT_EQ(by_name(decoder).at("model.layers.1.self_attn.o_proj.bias").interleaved_heads, 0);
  EXPECT_THAT(message_for(bytes.remove_tensor("blk.1.attn_output.bias")), Names("blk.1.attn_output.bias"));
}

TEST_F(GgufDecoderTest, KeysThatMayBeMissingHaveTheDefaultsOfTransformers) {
  GgufBytes bytes = small_gguf("llama");
  bytes.remove("llama.rope.freq_base").remove("llama.attention.key_length");
  EXPECT_EQ(read(bytes).config["rope_theta"], 10000.0);
  EXPECT_EQ(read(bytes).config["head_dim"], 4);  // embedding_length / head_count
  bytes.remove("llama.attention.head_count_kv");
  EXPECT_THAT(message_for(bytes), Names("blk.0.attn_k.weight", "[4, 8]", "[8, 8]"));
  bytes.set("llama.rope.dimension_count", uint32_t{2});
  EXPECT_THAT(message_for(bytes), Names("blk.0.attn_q.weight", "[8, 8]", "[4, 8]"));
}

TEST_F(GgufDecoderTest, MissingAndImpossibleKeysAreNamed) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.context_length",
                          "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"}) {
    EXPECT_THAT(message_for(small_gguf("llama").remove(key)), Names(key));
  }
  EXPECT_THAT(message_with("llama.block_count", uint32_t{0}), Names("llama.block_count", 0, 1));
  EXPECT_THAT(message_with("llama.embedding_length", uint32_t{1} << 31),
              Names("llama.embedding_length", 2147483648, 2147483647));
  EXPECT_THAT(message_with("llama.attention.head_count_kv", uint32_t{3}),
              Names("llama.attention.head_count_kv", 3, 2));
  EXPECT_THAT(message_with("llama.attention.head_count_kv", std::vector<uint32_t>{1, 1}),
              Names("llama.attention.head_count_kv", 2, "uint32"));
  EXPECT_THAT(message_with("llama.attention.key_length", uint32_t{3}), Names(3, "even"));
  EXPECT_THAT(message_with("llama.attention.layer_norm_rms_epsilon", std::nanf("")),
              Names("llama.attention.layer_norm_rms_epsilon"));
}

TEST_F(GgufDecoderTest, WhatACheckpointCannotSayIsRefusedByName) {
  EXPECT_THAT(message_with<Unsupported>("general.architecture", "gemma2"),
              Names("gemma2", "llama", "qwen2", "qwen3"));
  EXPECT_THAT(message_with<Unsupported>("llama.expert_count", uint32_t{8}), Names("llama.expert_count", 8));
  EXPECT_THAT(message_with<Unsupported>("llama.attention.sliding_window", uint32_t{63}),
              Names("llama.attention.sliding_window", 63, 64));
  EXPECT_THAT(message_with<Unsupported>("llama.rope.scaling.type", "yarn"), Names("\"yarn\""));
  EXPECT_THAT(message_with<Unsupported>("llama.rope.scaling.type", "linear"), Names("\"linear\""));
  EXPECT_THAT(message_with<Unsupported>("llama.rope.scaling.factor", 4.0f),
              Names("llama.rope.scaling.factor", "4.0"));
  EXPECT_THAT(message_with<Unsupported>("llama.rope.scale_linear", 2.0f), Names("llama.rope.scale_linear"));
  EXPECT_THAT(message_with<Unsupported>("llama.rope.dimension_count", uint32_t{2}),
              Names("llama.rope.dimension_count", 2, 4));
  EXPECT_THAT(message_with<Unsupported>("llama.attention.value_length", uint32_t{8}),
              Names("llama.attention.value_length", 8, 4));
  EXPECT_THAT(message_with<Unsupported>("llama.attention.causal", false), Names("llama.attention.causal"));
  EXPECT_THAT(message_with<Unsupported>("split.count", uint16_t{2}), Names("split.count", 2));

  GgufBytes harmless = small_gguf("llama");
  harmless.set("llama.expert_count", uint32_t{0}).set("llama.attention.sliding_window", uint32_t{64});
  harmless.set("llama.rope.scaling.type", "none").set("split.count", uint16_t{1});
  harmless.set("llama.rope.dimension_count", uint32_t{4});
  EXPECT_NO_THROW((void)read(harmless));
}

TEST_F(GgufDecoderTest, TensorsThatAreMissingOddOrOfAnotherShapeAreNamed) {
  EXPECT_THAT(message_for(small_gguf("llama").remove_tensor("blk.1.ffn_up.weight")),
              Names("blk.1.ffn_up.weight", 19));
  EXPECT_THAT(message_for(small_gguf("qwen2").remove_tensor("blk.0.attn_v.bias")),
              Names("blk.0.attn_v.bias"));
  EXPECT_THAT(
      message_for(small_gguf("llama").tensor(floats("output_norm.weight", {2, 4}, {0, 1, 2, 3, 4, 5, 6, 7}))),
      Names("output_norm.weight", "[2, 4]", "[8]"));
  EXPECT_THAT(message_for(small_gguf("llama").set("llama.block_count", uint32_t{2147483647})),
              Names("blk.2.attn_norm.weight"));
  EXPECT_THAT(message_for<Unsupported>(
                  small_gguf("llama").tensor(floats("blk.0.attn_q_norm.weight", {4}, {1, 1, 1, 1}))),
              Names("blk.0.attn_q_norm.weight", "LlamaForCausalLM"));
}

// What llama.cpp's converter writes for the llama3 scaling of config.json.
std::vector<float> llama3_divisors(double factor, double theta, int head_dim) {
  std::vector<float> divisors;
  for (int i = 0; i < head_dim; i += 2) {
    const double wavelength = 2 * std::numbers::pi * std::pow(theta, static_cast<double>(i) / head_dim);
    const double smooth = (8192 / wavelength - 1) / (4 - 1);
    divisors.push_back(static_cast<float>(wavelength < 8192.0 / 4   ? 1
                                          : wavelength > 8192.0 / 1 ? factor
                                                                    : 1 / ((1 - smooth) / factor + smooth)));
  }
  return divisors;
}

TEST_F(GgufDecoderTest, FrequenciesOfLlama3BecomeItsRopeScaling) {
  // One head of 16, so that there are frequencies of all three kinds.
  GgufBytes bytes = small_gguf("llama");
  bytes.set("llama.attention.key_length", uint32_t{16}).set("llama.rope.freq_base", 500000.0f);
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const auto matrix = [&](const char* name, uint64_t rows, uint64_t columns) {
      bytes.tensor(floats(layer + std::string(name), {rows, columns}, std::vector<float>(rows * columns)));
    };
    matrix("attn_q.weight", 32, 8);
    matrix("attn_k.weight", 16, 8);
    matrix("attn_v.weight", 16, 8);
    matrix("attn_output.weight", 8, 32);
  }
  const std::vector<float> divisors = llama3_divisors(32, 500000, 16);
  EXPECT_EQ(divisors.front(), 1);
  EXPECT_EQ(divisors.back(), 32);
  EXPECT_TRUE(std::ranges::any_of(divisors, [](float divisor) { return divisor > 1 && divisor < 32; }));
  bytes.tensor(floats("rope_freqs.weight", {8}, divisors));
  const GgufDecoder decoder = read(bytes);
  EXPECT_EQ(decoder.config["rope_scaling"], ordered_json::parse(R"({"rope_type": "llama3", "factor": 32.0,
      "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"));
  ASSERT_EQ(decoder.notes.size(), 1u);
  EXPECT_THAT(decoder.notes[0], Names("rope_freqs.weight", "llama3", "32.0"));

  std::vector<float> others = divisors;
  others[5] *= 1.01f;
  EXPECT_THAT(message_for<Unsupported>(bytes.tensor(floats("rope_freqs.weight", {8}, others))),
              Names("rope_freqs.weight", "llama3"));
  others = divisors;
  others[5] = std::nanf("");
  EXPECT_THAT(message_for<Unsupported>(bytes.tensor(floats("rope_freqs.weight", {8}, others))),
              Names("rope_freqs.weight", 5));
  bytes.tensor(floats("rope_freqs.weight", {8}, std::vector<float>(8, 1)));
  EXPECT_FALSE(read(bytes).config.contains("rope_scaling"));
  EXPECT_THAT(message_for(bytes.tensor(floats("rope_freqs.weight", {2}, {1, 1}))),
              Names("rope_freqs.weight", 8));
}

TEST_F(GgufDecoderTest, InterleavedRowsOfAHeadBecomeItsTwoHalves) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) rows.push_back(interleaved_row(row, 2, 12));
  EXPECT_THAT(rows, testing::ElementsAre(0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11));
}

}  // namespace
}  // namespace allot::model
