#include "model/token_decoder.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "model/byte_level.h"
#include "model/metaspace.h"
#include "model/replacement.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

std::string join(const std::vector<std::string>& tokens, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += separator;
    text += tokens[i];
  }
  return text;
}

void fuse(std::vector<std::string>* tokens) {
  *tokens = {join(*tokens, "")};
}

// A token with a character outside the alphabet (for example an added token) stays as it is.
void decode_byte_level(std::vector<std::string>* tokens) {
  std::string bytes;
  for (const std::string& token : *tokens) bytes += bytes_of_byte_level(token).value_or(token);
  *tokens = {to_valid_utf8(bytes)};
}

// The byte of a token like <0x0A>. The package reads the number as Rust does, which allows <0x+A>.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const char* const digits = token.data() + (token[3] == '+' ? 4 : 3);
  const char* const digits_end = token.data() + 5;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(digits, digits_end, byte, 16);
  return error == std::errc() && end == digits_end ? std::optional(static_cast<char>(byte)) : std::nullopt;
}

// Replaces runs of byte tokens by their text, or by one U+FFFD for each byte when a run is not UTF-8.
void decode_byte_fallback(std::vector<std::string>* tokens) {
  std::vector<std::string> result;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (!find_invalid_utf8(run))
      result.push_back(run);
    else
      result.insert(result.end(), run.size(), utf8_encode(0xFFFD));
    run.clear();
  };
  for (std::string& token : *tokens) {
    if (const auto byte = fallback_byte(token)) {
      run += *byte;
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  *tokens = std::move(result);
}

// Takes a character off both ends of a token, up to a number of times each.
struct Strip {
  std::string character;
  int64_t start = 0;
  int64_t stop = 0;

  explicit Strip(const JsonView& component)
      : character(component.at("content").character()),
        start(component.at("start").integer(0, INT64_MAX)),
        stop(component.at("stop").integer(0, INT64_MAX)) {}

  // Where both ends would take the same character the package fails; here the start has it.
  std::string_view without_ends(std::string_view token) const {
    for (int64_t i = 0; i < start && token.starts_with(character); ++i) token.remove_prefix(character.size());
    for (int64_t i = 0; i < stop && token.ends_with(character); ++i) token.remove_suffix(character.size());
    return token;
  }
};

template <typename Change>
void change_each(std::vector<std::string>* tokens, Change change) {
  for (std::string& token : *tokens) token = std::string(change(token));
}

}  // namespace

TokenDecoder::TokenDecoder(const JsonView& component) : join_with_space_(false) {
  add(component);
}

void TokenDecoder::add(const JsonView& component) {
  const std::string& type = component.at("type").text();
  if (type == "Sequence") {
    for (const JsonView& element : component.at("decoders").elements()) add(element);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(decode_byte_level);
  } else if (type == "Metaspace") {
    steps_.emplace_back([metaspace = Metaspace(component)](Tokens* tokens) { metaspace.decode(tokens); });
  } else if (type == "Replace") {
    steps_.emplace_back([replacement = Replacement(component, &times_longer_)](Tokens* tokens) {
      std::string buffer;
      change_each(tokens, [&](std::string_view token) { return replacement.apply(token, &buffer); });
    });
  } else if (type == "ByteFallback") {
    steps_.emplace_back(decode_byte_fallback);
  } else if (type == "Fuse") {
    steps_.emplace_back(fuse);
  } else if (type == "Strip") {
    steps_.emplace_back([strip = Strip(component)](Tokens* tokens) {
      change_each(tokens, [&](std::string_view token) { return strip.without_ends(token); });
    });
  } else {
    throw Unsupported(
        component.where() + " has type " + type +
        ", supported are ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence, or "
        "no decoder");
  }
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) step(&tokens);
  return join(tokens, join_with_space_ ? " " : "");
}

}  // namespace allot::model
