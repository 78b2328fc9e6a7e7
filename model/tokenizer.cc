#include "model/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/json_view.h"
#include "model/normalizer.h"
#include "model/pretokenize.h"
#include "model/token_decoder.h"
#include "model/utf8.h"
#include "model/vocabulary.h"

namespace allot::model {
namespace {

// The WordLevel model: each piece is one token, or unk.
class WordLevelEncoder {
 public:
  WordLevelEncoder(const JsonView& model, const Vocabulary& vocabulary)
      : vocabulary_(&vocabulary),
        unk_token_(model.at("unk_token").text()),
        unk_(vocabulary.find(unk_token_)) {
    for (size_t c = 0; c < ascii_.size(); ++c)
      ascii_[c] = vocabulary.find(std::string(1, static_cast<char>(c)));
  }

  void encode(std::string_view piece, std::vector<int32_t>* ids) const {
    const bool ascii = piece.size() == 1;  // in UTF-8 a single byte is
    const auto id = ascii ? ascii_[static_cast<uint8_t>(piece.front())] : vocabulary_->find(piece);
    if (!id && !unk_) {
      throw InvalidArgument("the piece \"" + std::string(piece) +
                            "\" is not in the vocabulary, and neither is unk_token " + unk_token_ +
                            ", which would stand for it");
    }
    ids->push_back(id ? *id : *unk_);
  }

  void encode_characters(std::string_view text, std::vector<int32_t>* ids) const {
    while (!text.empty()) {
      const size_t bytes = utf8_bytes(text.front());
      encode(text.substr(0, bytes), ids);
      text.remove_prefix(bytes);
    }
  }

 private:
  const Vocabulary* vocabulary_;
  std::string unk_token_;
  std::optional<int32_t> unk_;
  std::array<std::optional<int32_t>, 128> ascii_;
};

// The ids that the post-processor puts around a text.
struct Surroundings {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

std::vector<int32_t> template_token_ids(const JsonView& processor, const JsonView& piece) {
  const JsonView token = processor.at("special_tokens").at(piece.at("id").text());
  std::vector<int32_t> ids;
  for (const JsonView& id : token.at("ids").elements())
    ids.push_back(static_cast<int32_t>(id.integer(0, kMaxTokenId)));
  return ids;
}

void add_template(const JsonView& processor, Surroundings* result) {
  const JsonView single = processor.at("single");
  Surroundings added;
  int sequences = 0;
  for (const JsonView& piece : single.elements()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").text() != "A") sequence->fail("sequence A");
      ++sequences;
    } else {
      const std::vector<int32_t> ids = template_token_ids(processor, piece.at("SpecialToken"));
      std::vector<int32_t>& side = sequences == 0 ? added.before : added.after;
      side.insert(side.end(), ids.begin(), ids.end());
    }
  }
  if (sequences != 1) {
    throw Unsupported(single.where() + " holds the text " + std::to_string(sequences) +
                      " times, supported is once");
  }
  result->before.insert(result->before.begin(), added.before.begin(), added.before.end());
  result->after.insert(result->after.end(), added.after.begin(), added.after.end());
}

void add_post_processor(const JsonView& processor, Surroundings* result) {
  const std::string& type = processor.at("type").text();
  if (type == "TemplateProcessing") {
    add_template(processor, result);
  } else if (type == "Sequence") {
    for (const JsonView& element : processor.at("processors").elements()) add_post_processor(element, result);
  } else if (type != "ByteLevel") {  // ByteLevel changes offsets only
    throw Unsupported(processor.where() + " has type " + type +
                      ", supported are TemplateProcessing, ByteLevel, Sequence");
  }
}

std::string model_type(const JsonView& model) {
  // Files of the first GPT-2 tokenizers have no type.
  const std::string type = model.text_or("type", model.find("merges") ? "BPE" : "absent");
  if (type != "BPE" && type != "WordLevel") {
    throw Unsupported(model.where() + " has type " + type + ", supported are BPE, WordLevel");
  }
  return type;
}

std::optional<std::string> read_chat_template(const std::filesystem::path& directory) {
  const std::filesystem::path own_file = directory / "chat_template.jinja";
  if (std::filesystem::exists(own_file)) return read_file(own_file);
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const nlohmann::json document = parse_json_file(path);
  const auto field = JsonView(document, path.string()).find("chat_template");
  if (!field) return std::nullopt;
  if (field->value().is_string()) return field->text();
  for (const JsonView& named : field->elements()) {
    if (named.at("name").text() == "default") return named.at("template").text();
  }
  return std::nullopt;
}

// The texts of the special tokens that `file` names, over those that are known.
void read_special_tokens(const JsonView& file, SpecialTokens* tokens) {
  constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
  for (const char* name : kNames) {
    const auto field = file.find(name);
    if (!field) continue;
    const std::string text = field->value().is_object() ? field->at("content").text() : field->text();
    const auto known = std::ranges::find(*tokens, name, &SpecialTokens::value_type::first);
    if (known == tokens->end()) {
      tokens->emplace_back(name, text);
    } else {
      known->second = text;
    }
  }
}

SpecialTokens special_tokens_of(const std::filesystem::path& directory) {
  SpecialTokens tokens;
  const std::filesystem::path path = directory / "tokenizer_config.json";
  bool complete = false;
  if (std::filesystem::exists(path)) {
    const nlohmann::json document = parse_json_file(path);
    const JsonView config(document, path.string());
    read_special_tokens(config, &tokens);
    complete = config.find("added_tokens_decoder").has_value();
  }
  const std::filesystem::path older = directory / "special_tokens_map.json";
  if (!complete && std::filesystem::exists(older)) {
    const nlohmann::json document = parse_json_file(older);
    read_special_tokens(JsonView(document, older.string()), &tokens);
  }
  return tokens;
}

// The BOS token that tokenizer_config.json asks for in front of every text. transformers 4 put it there only
// for the Llama tokenizers, whatever tokenizer.json says; DeepSeek's R1 models rely on it.
std::optional<std::string> configured_bos(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const nlohmann::json document = parse_json_file(path);
  const JsonView config(document, path.string());
  if (!config.text_or("tokenizer_class", "").starts_with("LlamaTokenizer")) return std::nullopt;
  if (!config.boolean_or("add_bos_token", false)) return std::nullopt;
  const JsonView bos = config.at("bos_token");
  return bos.value().is_object() ? bos.at("content").text() : bos.text();
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(const JsonView& file);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Memory of a call of encode.
  struct Scratch {
    Normalizer::Scratch normalized;
    PreTokenizer::Scratch pieces;
    BytePairEncoder::Scratch merging;
  };

  std::unique_ptr<Scratch> take_scratch();
  void give_back(std::unique_ptr<Scratch> scratch);

  void add_added_tokens(const JsonView& file);
  const std::string* token(int32_t id) const;
  void encode_raw(std::string_view text, Scratch& scratch, std::vector<int32_t>* ids) const;
  void encode_normalized(std::string_view text, TextPlace place, Scratch& scratch,
                         std::vector<int32_t>* ids) const;

  Vocabulary vocabulary;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::variant<WordLevelEncoder, BytePairEncoder> model;
  AddedTokenFinder raw_added;
  AddedTokenFinder normalized_added;
  TokenMap added_ids;
  std::vector<std::optional<std::string>> added_texts;  // by id
  std::vector<bool> special;                            // by id
  int32_t added_beyond_vocabulary = 0;
  Surroundings surroundings;
  TokenDecoder decoder;
  std::optional<std::string> chat_template;
  SpecialTokens special_tokens;

 private:
  // As many as the most calls that ever ran at once. What they remember of earlier texts makes later calls
  // faster and changes no id.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> unused_;
};

namespace {

Normalizer read_normalizer(const JsonView& file) {
  const auto component = file.find("normalizer");
  return component ? Normalizer(*component) : Normalizer();
}

PreTokenizer read_pre_tokenizer(const JsonView& file) {
  const auto component = file.find("pre_tokenizer");
  return component ? PreTokenizer(*component) : PreTokenizer();
}

std::variant<WordLevelEncoder, BytePairEncoder> read_model(const JsonView& model,
                                                           const Vocabulary& vocabulary, bool byte_level) {
  if (model_type(model) == "BPE") {
    return std::variant<WordLevelEncoder, BytePairEncoder>(std::in_place_type<BytePairEncoder>, model,
                                                           vocabulary, byte_level);
  }
  if (byte_level) {
    throw Unsupported(model.where() +
                      " is WordLevel behind the pre-tokenizer ByteLevel, supported is BPE behind it");
  }
  return WordLevelEncoder(model, vocabulary);
}

// Checked before the vocabulary is read, because its form differs in kinds of model that are not supported.
JsonView supported_model(const JsonView& file) {
  const JsonView model = file.at("model");
  model_type(model);
  return model;
}

}  // namespace

Tokenizer::Impl::Impl(const JsonView& file)
    : vocabulary(supported_model(file).at("vocab")),
      normalizer(read_normalizer(file)),
      pre_tokenizer(read_pre_tokenizer(file)),
      model(read_model(file.at("model"), vocabulary, pre_tokenizer.byte_level())) {
  if (pre_tokenizer.heeds_place() && !normalizer.keeps_start()) {
    throw Unsupported(
        file.at("normalizer").where() +
        " has a Replace that leaves characters out or takes several at once, before Metaspace with "
        "prepend_scheme first; supported is a Replace of one character by one or more");
  }
  if (const auto processor = file.find("post_processor")) add_post_processor(*processor, &surroundings);
  if (const auto component = file.find("decoder")) decoder = TokenDecoder(*component);
  add_added_tokens(file);
  for (const std::vector<int32_t>* side : {&surroundings.before, &surroundings.after}) {
    for (const int32_t id : *side) {
      if (token(id) == nullptr) {
        throw CorruptFile(file.where() + ": post_processor adds token id " + std::to_string(id) +
                          ", which no token of the vocabulary has");
      }
    }
  }
}

std::unique_ptr<Tokenizer::Impl::Scratch> Tokenizer::Impl::take_scratch() {
  const std::lock_guard lock(mutex_);
  if (unused_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(unused_.back());
  unused_.pop_back();
  return scratch;
}

void Tokenizer::Impl::give_back(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  unused_.push_back(std::move(scratch));
}

void Tokenizer::Impl::add_added_tokens(const JsonView& file) {
  const auto list = file.find("added_tokens");
  if (!list) return;
  // The package takes a token for special by its text, which may be the normalized one, and not by its id.
  std::unordered_set<std::string_view> special_contents;
  for (const JsonView& entry : list->elements()) {
    AddedToken added{.id = static_cast<int32_t>(entry.at("id").integer(0, kMaxTokenId)),
                     .content = entry.at("content").text(),
                     .single_word = entry.boolean_or("single_word", false),
                     .lstrip = entry.boolean_or("lstrip", false),
                     .rstrip = entry.boolean_or("rstrip", false),
                     .normalized = entry.boolean_or("normalized", true),
                     .special = entry.boolean_or("special", false)};
    if (added.content.empty()) entry.at("content").fail("a text that is not empty");
    const auto known = vocabulary.find(added.content);
    if (known && *known != added.id) {
      entry.at("id").fail("the id of \"" + added.content + "\" in model.vocab, " + std::to_string(*known));
    }
    const std::string* holder = token(added.id);
    if (holder != nullptr && *holder != added.content) {
      entry.at("id").fail("an id of its own for \"" + added.content + "\"; \"" + *holder + "\" has this one");
    }
    if (!added_ids.emplace(added.content, added.id).second) entry.at("content").fail("each added token once");
    if (!known) ++added_beyond_vocabulary;

    Normalizer::Scratch normalized;
    const std::string text(added.normalized ? normalizer.apply(added.content, normalized) : added.content);
    // A token that the normalizer leaves nothing of is in no text.
    if (!text.empty()) (added.normalized ? normalized_added : raw_added).add(added, text);
    const auto place = static_cast<size_t>(added.id);
    if (place >= added_texts.size()) added_texts.resize(place + 1);
    added_texts[place] = text;
    if (added.special) special_contents.insert(entry.at("content").text());
  }
  for (const auto& text : added_texts) special.push_back(text && special_contents.contains(*text));
}

const std::string* Tokenizer::Impl::token(int32_t id) const {
  const bool in_range = id >= 0 && static_cast<size_t>(id) < added_texts.size();
  if (in_range && added_texts[static_cast<size_t>(id)]) return &*added_texts[static_cast<size_t>(id)];
  return vocabulary.token(id);
}

void Tokenizer::Impl::encode_raw(std::string_view text, Scratch& scratch, std::vector<int32_t>* ids) const {
  const auto on_token = [&](int32_t id) { ids->push_back(id); };
  raw_added.scan(
      text,
      [&](std::string_view part) {
        const std::string_view normalized = normalizer.apply(part, scratch.normalized);
        const auto on_normalized = [&](std::string_view stretch) {
          const bool first = part.data() == text.data() && stretch.data() == normalized.data();
          encode_normalized(stretch, first ? TextPlace::kStart : TextPlace::kLater, scratch, ids);
        };
        normalized_added.scan(normalized, on_normalized, on_token);
      },
      on_token);
}

void Tokenizer::Impl::encode_normalized(std::string_view text, TextPlace place, Scratch& scratch,
                                        std::vector<int32_t>* ids) const {
  if (const auto* words = std::get_if<WordLevelEncoder>(&model)) {
    if (pre_tokenizer.every_character()) return words->encode_characters(text, ids);
    for (const std::string_view piece : pre_tokenizer.split(text, place, scratch.pieces)) {
      words->encode(piece, ids);
    }
  } else {
    const auto& pairs = std::get<BytePairEncoder>(model);
    constexpr size_t kAhead = 8;
    const auto& pieces = pre_tokenizer.split(text, place, scratch.pieces);
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i + kAhead < pieces.size()) pairs.prefetch(pieces[i + kAhead]);
      pairs.encode(pieces[i], scratch.merging, ids);
    }
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  const nlohmann::json document = parse_json_file(path);
  const JsonView file(document, path.string());
  try {
    auto impl = std::make_unique<Impl>(file);
    impl->chat_template = read_chat_template(directory);
    impl->special_tokens = special_tokens_of(directory);
    Tokenizer tokenizer(std::move(impl));
    if (const auto bos = configured_bos(directory)) tokenizer.put_first(*bos, directory);
    return tokenizer;
  } catch (const Unsupported& error) {
    // The error names the pattern but not its file.
    const std::string what = error.what();
    if (what.starts_with(path.string())) throw;
    throw Unsupported(path.string() + ": " + what);
  }
}

void Tokenizer::put_first(const std::string& token, const std::filesystem::path& directory) {
  const std::optional<int32_t> id = id_of(token);
  if (!id) {
    throw CorruptFile((directory / "tokenizer_config.json").string() + ": field bos_token is \"" + token +
                      "\", expected a token of tokenizer.json");
  }
  std::vector<int32_t>& before = impl_->surroundings.before;
  if (before.empty() || before.front() != *id) before.insert(before.begin(), *id);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (const auto offset = find_invalid_utf8(text)) {
    throw InvalidArgument("the text to encode is not UTF-8: byte " + std::to_string(*offset) + " of " +
                          std::to_string(text.size()) +
                          " does not start or continue a character; convert it to UTF-8");
  }
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = impl_->surroundings.before;
  ids.reserve(text.size() / 4);
  std::unique_ptr<Impl::Scratch> scratch = impl_->take_scratch();
  impl_->encode_raw(text, *scratch, &ids);
  impl_->give_back(std::move(scratch));
  if (add_special_tokens) {
    const std::vector<int32_t>& after = impl_->surroundings.after;
    ids.insert(ids.end(), after.begin(), after.end());
  }
  return ids;
}

bool Tokenizer::has(int32_t id) const {
  return impl_->token(id) != nullptr;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const std::string* token = impl_->token(id);
    if (token == nullptr) {
      throw InvalidArgument("token id " + std::to_string(id) + " is not in the vocabulary of " +
                            std::to_string(vocab_size()) + " tokens");
    }
    const bool special =
        static_cast<size_t>(id) < impl_->special.size() && impl_->special[static_cast<size_t>(id)];
    if (!(special && skip_special_tokens)) tokens.push_back(*token);
  }
  return impl_->decoder.decode(std::move(tokens));
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(impl_->vocabulary.ids().size()) + impl_->added_beyond_vocabulary;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto added = impl_->added_ids.find(token);
  return added != impl_->added_ids.end() ? std::optional(added->second) : impl_->vocabulary.find(token);
}

const std::optional<std::string>& Tokenizer::chat_template() const {
  return impl_->chat_template;
}

const SpecialTokens& Tokenizer::special_tokens() const {
  return impl_->special_tokens;
}

std::string_view Tokenizer::special_token(std::string_view name) const {
  const auto found = std::ranges::find(special_tokens(), name, &SpecialTokens::value_type::first);
  return found == special_tokens().end() ? std::string_view() : found->second;
}

}  // namespace allot::model
