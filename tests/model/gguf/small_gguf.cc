#include "tests/model/gguf/small_gguf.h"

#include "model/utf8.h"

namespace allot::model {

std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  char32_t next = 256;  // stands for the bytes that cannot be printed, in their order
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    tokens.push_back(utf8_encode(printable ? byte : next++));
  }
  return tokens;
}

GgufBytes small_gguf(const std::string& architecture) {
  GgufBytes file;
  const auto key = [&](const char* name) { return architecture + "." + name; };
  file.set("general.architecture", architecture);
  file.set(key("block_count"), uint32_t{2}).set(key("context_length"), uint32_t{64});
  file.set(key("embedding_length"), uint32_t{8}).set(key("feed_forward_length"), uint32_t{6});
  file.set(key("attention.head_count"), uint32_t{2}).set(key("attention.head_count_kv"), uint32_t{1});
  file.set(key("attention.key_length"), uint32_t{4});
  file.set(key("attention.layer_norm_rms_epsilon"), 1e-5f).set(key("rope.freq_base"), 50000.0f);

  std::vector<std::string> tokens = byte_tokens();
  std::vector<int32_t> types(tokens.size(), 1);
  const auto add = [&](const char* text, int32_t type) {
    tokens.emplace_back(text);
    types.push_back(type);
  };
  add("he", 1);
  add("ll", 1);
  add("<s>", 3);
  add("</s>", 3);
  add("<eot>", 3);
  add("<mark>", 4);
  add("Ġ1", 1);
  add("[PAD]", 5);
  file.set("tokenizer.ggml.model", "gpt2");
  file.set("tokenizer.ggml.pre", architecture == "llama" ? "smollm" : "qwen2");
  file.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"h e", "l l", "Ġ 1"});
  file.set("tokenizer.ggml.bos_token_id", uint32_t{kBos});
  file.set("tokenizer.ggml.eos_token_id", uint32_t{kEos});

  const auto tensor = [&](const std::string& name, const std::vector<uint64_t>& shape) {
    uint64_t count = 1;
    for (const uint64_t size : shape) count *= size;
    std::vector<float> values;
    const auto first = static_cast<float>(1000 * file.tensors().size());
    for (uint64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
    file.tensor(floats(name, shape, values));
  };
  tensor("token_embd.weight", {tokens.size(), 8});
  for (const char* layer : {"blk.0.", "blk.1."}) {
    const auto in_layer = [&](const char* name, const std::vector<uint64_t>& shape) {
      tensor(layer + std::string(name), shape);
    };
    in_layer("attn_norm.weight", {8});
    in_layer("attn_q.weight", {8, 8});
    in_layer("attn_k.weight", {4, 8});
    in_layer("attn_v.weight", {4, 8});
    in_layer("attn_output.weight", {8, 8});
    in_layer("ffn_norm.weight", {8});
    in_layer("ffn_gate.weight", {6, 8});
    in_layer("ffn_up.weight", {6, 8});
    in_layer("ffn_down.weight", {8, 6});
    if (architecture == "qwen2") {
      in_layer("attn_q.bias", {8});
      in_layer("attn_k.bias", {4});
      in_layer("attn_v.bias", {4});
    }
    if (architecture == "qwen3") {
      in_layer("attn_q_norm.weight", {4});
      in_layer("attn_k_norm.weight", {4});
    }
  }
  tensor("output_norm.weight", {8});
  return file;
}

}  // namespace allot::model
