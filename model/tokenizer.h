// tokenizer.json to token ids and back. Torch-free; evaluation counts tokens with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace allot::model {

// Names as tokenizer_config.json has them ("bos_token", "eos_token" …) with the tokens' texts.
using SpecialTokens = std::vector<std::pair<std::string, std::string>>;

class Tokenizer {
 public:
  // Reads `directory`/tokenizer.json and, where present, the chat template of chat_template.jinja or else
  // tokenizer_config.json, and the names of special tokens. Supported: model BPE (byte-level or over
  // characters, merges as "a b" or as pairs, ignore_merges, unk_token, fuse_unk, byte_fallback) and
  // WordLevel; normalizers NFC, Prepend and Replace; pre-tokenizers ByteLevel, Metaspace, Split, Whitespace,
  // WhitespaceSplit and Digits; post-processors TemplateProcessing and ByteLevel; decoders ByteLevel,
  // Metaspace, Replace, ByteFallback, Fuse, Strip or none; sequences of all these; added tokens with all
  // their options. Truncation and padding that the file may ask for are not applied, as in `transformers`.
  // Where tokenizer_config.json names a Llama tokenizer with add_bos_token, bos_token is added in front as by
  // the post-processor, as transformers 4 does. Throws NotFound, CorruptFile or Unsupported naming the
  // component's type and what is supported.
  static Tokenizer load(const std::filesystem::path& directory);

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids as the `tokenizers` package gives them. `add_special_tokens` applies the post-processor (BOS and the
  // like). Throws InvalidArgument with the byte offset when `text` is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // Text of the ids. Special tokens are left out when `skip_special_tokens`. Throws InvalidArgument for an id
  // that is not in the vocabulary, naming it and the vocabulary size.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int32_t vocab_size() const;  // model vocabulary and added tokens
  bool has(int32_t id) const;  // whether decode() takes it
  std::optional<int32_t> id_of(std::string_view token) const;
  // The chat template's text, when the directory has one.
  const std::optional<std::string>& chat_template() const;
  // The special tokens that chat templates may name: those of tokenizer_config.json or, in directories of
  // the older form (without added_tokens_decoder there), of special_tokens_map.json before it.
  const SpecialTokens& special_tokens() const;
  // The text of the one of this name, "eos_token"; empty where there is none.
  std::string_view special_token(std::string_view name) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  // Makes `token` the first token that the post-processor adds, unless it already is.
  void put_first(const std::string& token, const std::filesystem::path& directory);
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model
