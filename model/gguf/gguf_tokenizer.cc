#include "model/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace allot::model {
namespace {

using nlohmann::ordered_json;

// tokenizer.ggml.token_type, as far as byte-level BPE has them.
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kMaxTokenType = 6;

// What text is cut by before it is merged, and what else goes with it in the models' own tokenizer.json.
struct PreTokenizerKind {
  const char* pattern = nullptr;  // of a Split; null: ByteLevel cuts by GPT-2's pattern
  bool digits = false;            // every digit by itself, first
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;  // when the file does not say
};

constexpr PreTokenizerKind kGpt2 = {};
constexpr PreTokenizerKind kGpt2WithDigits = {.digits = true};
constexpr PreTokenizerKind kLlama3 = {
    .pattern =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    .ignore_merges = true,
    .add_bos = true,
};
constexpr PreTokenizerKind kQwen2 = {
    .pattern =
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    .nfc = true,
};

constexpr std::pair<const char*, PreTokenizerKind> kPreTokenizers[] = {
    {"gpt-2", kGpt2},
    {"smollm", kGpt2WithDigits},
    {"starcoder", kGpt2WithDigits},
    {"refact", kGpt2WithDigits},
    {"llama-bpe", kLlama3},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"qwen2", kQwen2},
    {"deepseek-r1-qwen", kQwen2},
};
// What converters wrote that did not know the tokenizer.
constexpr std::string_view kUnnamed = "default";

PreTokenizerKind find_pre_tokenizer(const GgufField& field, const std::string& architecture,
                                    std::vector<std::string>* notes) {
  const std::string_view name = field.text();
  if (name == kUnnamed) {
    const bool qwen = architecture.starts_with("qwen");
    notes->push_back(field.where() + " is \"" + std::string(kUnnamed) +
                     "\": taken for the pre-tokenizer of " + (qwen ? "Qwen2" : "GPT-2") +
                     ", as transformers does for this architecture; compare ids with the original model's");
    return qwen ? kQwen2 : kGpt2;
  }
  std::string known;
  for (const auto& [known_name, kind] : kPreTokenizers) {
    if (name == known_name) return kind;
    known.append(known_name).append(", ");
  }
  throw Unsupported(
      field.where() + " is " + field.shown() + ", supported are " + known + std::string(kUnnamed) +
      "; take tokenizer.json from the original model, or add the name (docs/internals/gguf.md)");
}

ordered_json byte_level(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

ordered_json pre_tokenizer(const PreTokenizerKind& kind) {
  ordered_json last = byte_level(kind.pattern == nullptr);
  ordered_json first;
  if (kind.pattern != nullptr) {
    first = {{"type", "Split"},
             {"pattern", {{"Regex", kind.pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  } else if (kind.digits) {
    first = {{"type", "Digits"}, {"individual_digits", true}};
  } else {
    return last;
  }
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({std::move(first), std::move(last)})}};
}

// The tokens with their types and the ids that have a part to play.
struct Tokens {
  std::vector<std::string_view> texts;
  std::vector<int64_t> types;
  std::optional<int64_t> bos, pad, unknown;
  int64_t eos = 0;
  std::vector<int64_t> ends;  // eos and the others that end a reply

  const std::string_view& text(int64_t id) const { return texts[static_cast<size_t>(id)]; }
};

std::optional<int64_t> find_id(const GgufFile& file, const char* key, const Tokens& tokens) {
  const auto field = file.find(key);
  if (!field) return std::nullopt;
  return field->integer(0, static_cast<int64_t>(tokens.texts.size()) - 1);
}

Tokens read_tokens(const GgufFile& file) {
  Tokens tokens;
  const GgufField texts = file.at("tokenizer.ggml.tokens");
  tokens.texts = texts.texts();
  if (tokens.texts.empty()) texts.fail("at least one token");
  const GgufField types = file.at("tokenizer.ggml.token_type");
  tokens.types = types.integers(0, kMaxTokenType);
  if (tokens.types.size() != tokens.texts.size()) {
    types.fail("a type for each of the " + std::to_string(tokens.texts.size()) + " tokens");
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const auto [known, added] = ids.emplace(tokens.texts[id], id);
    if (!added || tokens.texts[id].empty()) {
      throw CorruptFile(texts.where() + ": element " + std::to_string(id) + " is " +
                        shown_text(tokens.texts[id]) +
                        (added ? "" : ", as is element " + std::to_string(known->second)) +
                        ", expected tokens that differ and are not empty");
    }
  }
  tokens.eos =
      file.at("tokenizer.ggml.eos_token_id").integer(0, static_cast<int64_t>(tokens.texts.size()) - 1);
  tokens.bos = find_id(file, "tokenizer.ggml.bos_token_id", tokens);
  tokens.pad = find_id(file, "tokenizer.ggml.padding_token_id", tokens);
  tokens.unknown = find_id(file, "tokenizer.ggml.unknown_token_id", tokens);
  tokens.ends = {tokens.eos};
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const std::optional<int64_t> id = find_id(file, key, tokens);
    if (id && std::ranges::find(tokens.ends, *id) == tokens.ends.end()) tokens.ends.push_back(*id);
  }
  return tokens;
}

// Control tokens, those that a role of their own makes special, and tokens that a user defined.
ordered_json added_tokens(const Tokens& tokens) {
  std::set<int64_t> special(tokens.ends.begin(), tokens.ends.end());
  for (const auto& id : {tokens.bos, tokens.pad}) {
    if (id) special.insert(*id);
  }
  ordered_json added = ordered_json::array();
  for (size_t i = 0; i < tokens.texts.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    const bool is_special = tokens.types[i] == kControl || special.contains(id);
    if (!is_special && tokens.types[i] != kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", tokens.texts[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", is_special}});
  }
  return added;
}

ordered_json merge_rules(const GgufField& field, const Tokens& tokens) {
  const std::set<std::string_view> known(tokens.texts.begin(), tokens.texts.end());
  ordered_json rules = ordered_json::array();
  const std::vector<std::string_view> merges = field.texts();
  std::string merged;
  for (size_t i = 0; i < merges.size(); ++i) {
    // Tokens are written in the alphabet of bytes, which has no space.
    const size_t space = merges[i].find(' ');
    const std::string_view left = merges[i].substr(0, space);
    const std::string_view right = space == std::string_view::npos ? "" : merges[i].substr(space + 1);
    merged.assign(left).append(right);
    if (!known.contains(left) || !known.contains(right) || !known.contains(merged)) {
      throw CorruptFile(field.where() + ": element " + std::to_string(i) + " is " + shown_text(merges[i]) +
                        ", expected two tokens with a space between them that together spell a token");
    }
    rules.push_back({left, right});
  }
  return rules;
}

ordered_json bpe_model(const GgufFile& file, const Tokens& tokens, bool ignore_merges) {
  // Appended without looking each token up among those before it.
  ordered_json::object_t vocabulary;
  vocabulary.reserve(tokens.texts.size());
  for (size_t id = 0; id < tokens.texts.size(); ++id) vocabulary.emplace_back(tokens.texts[id], id);
  // Bytes without a token are left out, as the models' own files and llama.cpp do: no unk_token.
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", ignore_merges},
          {"vocab", std::move(vocabulary)},
          {"merges", merge_rules(file.at("tokenizer.ggml.merges"), tokens)}};
}

// ByteLevel, which changes no id, where nothing is put around texts.
ordered_json post_processor(const GgufFile& file, const Tokens& tokens, bool bos_by_default) {
  const auto asked_for = [&](const char* key, bool by_default) {
    const auto field = file.find(key);
    return field ? field->boolean() : by_default;
  };
  const bool bos = asked_for("tokenizer.ggml.add_bos_token", bos_by_default);
  const bool eos = asked_for("tokenizer.ggml.add_eos_token", false);
  if (!bos && !eos) return byte_level(true);
  ordered_json single = ordered_json::array(), pair = ordered_json::array();
  ordered_json special = ordered_json::object();
  const auto put = [&](int64_t id) {
    const std::string_view text = tokens.text(id);
    single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    pair.push_back(single.back());
    special[std::string(text)] = {
        {"id", text}, {"ids", ordered_json::array({id})}, {"tokens", ordered_json::array({text})}};
  };
  const auto last_id = static_cast<int64_t>(tokens.texts.size()) - 1;
  const auto sequence = [](const char* name, int type) {
    return ordered_json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  if (bos) put(file.at("tokenizer.ggml.bos_token_id").integer(0, last_id));
  single.push_back(sequence("A", 0));
  pair.push_back(sequence("A", 0));
  pair.push_back(sequence("B", 1));
  if (eos) put(tokens.eos);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

ordered_json tokenizer_config(const GgufFile& file, const Tokens& tokens) {
  // A class that takes tokenizer.json as it is, in every release of transformers.
  ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"clean_up_tokenization_spaces", false}};
  const auto name = [&](const char* field, const std::optional<int64_t>& id) {
    if (id) config[field] = tokens.text(*id);
  };
  name("bos_token", tokens.bos);
  name("eos_token", tokens.eos);
  name("pad_token", tokens.pad);
  name("unk_token", tokens.unknown);
  if (const auto chat = file.find("tokenizer.chat_template")) config["chat_template"] = chat->text();
  return config;
}

}  // namespace

GgufTokenizer read_gguf_tokenizer(const GgufFile& file, const std::string& architecture) {
  const GgufField model = file.at("tokenizer.ggml.model");
  if (model.text() != "gpt2") {
    throw Unsupported(
        model.where() + " is " + model.shown() +
        ", supported is \"gpt2\" (byte-level BPE); take tokenizer.json from the original model");
  }
  GgufTokenizer result;
  const PreTokenizerKind kind =
      find_pre_tokenizer(file.at("tokenizer.ggml.pre"), architecture, &result.notes);
  const Tokens tokens = read_tokens(file);
  result.tokenizer = {{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", added_tokens(tokens)},
                      {"normalizer", kind.nfc ? ordered_json{{"type", "NFC"}} : ordered_json()},
                      {"pre_tokenizer", pre_tokenizer(kind)},
                      {"post_processor", post_processor(file, tokens, kind.add_bos)},
                      {"decoder", byte_level(true)},
                      {"model", bpe_model(file, tokens, kind.ignore_merges)}};
  result.tokenizer_config = tokenizer_config(file, tokens);
  result.bos = tokens.bos;
  result.ends = tokens.ends;
  result.pad = tokens.pad;
  return result;
}

}  // namespace allot::model
