#include "model/token_decoder.h"

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "model/byte_level.h"
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

// A token with a character outside the alphabet (for example an added token) stays as it is.
std::string decode_byte_level(const std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_byte_level(token).value_or(token);
  return to_valid_utf8(bytes);
}

// The byte of a token like <0x0A>.
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(byte))
                                                         : std::nullopt;
}

// Replaces runs of byte tokens by their text, or by one U+FFFD for each byte when a run is not UTF-8.
std::vector<std::string> decode_byte_fallback(std::vector<std::string> tokens) {
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
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      run += *byte;
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  return result;
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
    steps_.push_back(Step::kByteLevel);
  } else if (type == "Fuse") {
    steps_.push_back(Step::kFuse);
  } else if (type == "ByteFallback") {
    steps_.push_back(Step::kByteFallback);
  } else {
    throw Unsupported(component.where() + " has type " + type +
                      ", supported are ByteLevel, Fuse, ByteFallback, Sequence, or no decoder");
  }
}

std::string TokenDecoder::decode(std::vector<std::string> tokens) const {
  for (const Step step : steps_) {
    switch (step) {
      case Step::kByteLevel:
        tokens = {decode_byte_level(tokens)};
        break;
      case Step::kFuse:
        tokens = {join(tokens, "")};
        break;
      case Step::kByteFallback:
        tokens = decode_byte_fallback(std::move(tokens));
        break;
    }
  }
  return join(tokens, join_with_space_ ? " " : "");
}

}  // namespace allot::model
