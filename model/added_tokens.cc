#include "model/added_tokens.h"

#include <algorithm>
#include <functional>

#include "model/regex.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

// Unicode's White_Space, to which Python adds four separators.
bool is_whitespace(std::string_view character) {
  const char32_t c = utf8_decode(character);
  return is_wide_space(c) && !(c >= 0x1C && c <= 0x1F);
}

bool is_word_character(std::string_view character) {
  static const Regex kWord =
      Regex::from_pcre2(std::string("[").append(Regex::word_members()).append(R"(\p{Join_Control}])"));
  Regex::Scratch scratch;
  return kWord.find(character, 0, scratch).has_value();
}

std::string_view first_character(std::string_view text) {
  return text.substr(0, utf8_bytes(text.front()));
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, const std::string& text) {
  index_.insert_or_assign(text, static_cast<int32_t>(patterns_.size()));
  patterns_.push_back({text, token});
  auto& [common, lengths] = groups_[static_cast<uint8_t>(text.front())];
  if (lengths.empty()) {
    first_bytes_ += text.front();
    common = text;
  }
  common.erase(std::mismatch(common.begin(), common.end(), text.begin(), text.end()).first, common.end());
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), text.size(), std::greater<>());
  if (place == lengths.end() || *place != text.size()) lengths.insert(place, text.size());
}

size_t AddedTokenFinder::next_start(std::string_view text, size_t at) const {
  if (first_bytes_.empty()) return text.size();
  // Usually all patterns start with '<', and a search for one byte runs at memory speed.
  if (first_bytes_.size() == 1) return std::min(text.find(first_bytes_.front(), at), text.size());
  while (at < text.size() && groups_[static_cast<uint8_t>(text[at])].lengths.empty()) ++at;
  return at;
}

const AddedTokenFinder::Pattern* AddedTokenFinder::longest_of(std::string_view text) const {
  const Group& group = groups_[static_cast<uint8_t>(text.front())];
  if (!text.starts_with(group.common)) return nullptr;
  for (const size_t length : group.lengths) {
    if (length > text.size()) continue;
    const auto found = index_.find(text.substr(0, length));
    if (found != index_.end()) return &patterns_[static_cast<size_t>(found->second)];
  }
  return nullptr;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word_character(utf8_last(text.substr(0, begin)));
  const bool word_after = end < text.size() && is_word_character(first_character(text.substr(end)));
  return !word_before && !word_after;
}

AddedTokenFinder::Taken AddedTokenFinder::with_whitespace(std::string_view text, size_t begin, size_t end,
                                                          size_t covered, const AddedToken& token) {
  if (token.lstrip) {
    while (begin > covered) {
      const std::string_view last = utf8_last(text.substr(0, begin));
      if (!is_whitespace(last)) break;
      begin -= last.size();
    }
  }
  if (token.rstrip) {
    while (end < text.size() && is_whitespace(first_character(text.substr(end)))) {
      end += first_character(text.substr(end)).size();
    }
  }
  return {begin, end};
}

}  // namespace allot::model
