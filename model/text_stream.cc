#include "model/text_stream.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

namespace allot::model {
namespace {

// What decoders write for bytes that are no character, or not yet one.
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace

std::string known_text(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                       bool skip_special_tokens) {
  const auto is_known = [&](int32_t id) { return tokenizer.has(id); };
  if (std::ranges::all_of(tokens, is_known)) return tokenizer.decode(tokens, skip_special_tokens);
  std::vector<int32_t> known;
  std::ranges::copy_if(tokens, std::back_inserter(known), is_known);
  return tokenizer.decode(known, skip_special_tokens);
}

std::string TextStream::piece(std::span<const int32_t> output, bool ended) {
  const std::string before = known_text(*tokenizer_, output.subspan(context_, given_ - context_));
  const std::string text = known_text(*tokenizer_, output.subspan(context_));
  if (text.size() <= before.size()) return "";
  if (text.ends_with(kReplacementCharacter) && !ended) return "";
  context_ = given_;
  given_ = output.size();
  return text.substr(before.size());
}

std::string TextStream::add(std::span<const int32_t> output) {
  return piece(output, /*ended=*/false);
}

std::string TextStream::rest(std::span<const int32_t> output) {
  return piece(output, /*ended=*/true);
}

}  // namespace allot::model
