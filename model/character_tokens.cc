#include "model/character_tokens.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace allot::model {
namespace {

constexpr size_t kMaxText = 5;  // a space and a character of four bytes

// A rule as one of its two tokens sees it.
struct Neighbour {
  int32_t token = 0;
  uint32_t rank = 0;
  uint8_t byte = 0;  // the other token's byte where the two touch
};

// The neighbours of each token, in order of token.
class Neighbours {
 public:
  void add(const Neighbour& neighbour) { all_.push_back(neighbour); }
  void sort() { std::sort(all_.begin(), all_.end(), by_token); }
  std::span<const Neighbour> of(int32_t token) const {
    // Not std::ranges::equal_range, which clang 14 cannot compile with GCC 12's headers.
    const auto [begin, end] = std::equal_range(all_.begin(), all_.end(), Neighbour{.token = token}, by_token);
    return {begin, end};
  }

 private:
  static bool by_token(const Neighbour& a, const Neighbour& b) { return a.token < b.token; }

  std::vector<Neighbour> all_;
};

// The result of merging a few bytes alone.
struct Path {
  std::optional<int32_t> token;    // when they end as one token
  std::vector<int32_t> left_ends;  // symbols that were at this end meanwhile
  std::vector<int32_t> right_ends;
  uint32_t highest_rank = 0;
};

Path path_of(std::string_view text, const MergeTable& merges, const std::array<int32_t, 256>& byte_ids) {
  std::vector<int32_t> symbols;
  for (const char byte : text) symbols.push_back(byte_ids[static_cast<uint8_t>(byte)]);
  Path path;
  while (symbols.size() > 1) {
    path.left_ends.push_back(symbols.front());
    path.right_ends.push_back(symbols.back());
    MergeTable::Merge best;
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge merge = merges.find(symbols[i], symbols[i + 1]);
      if (merge.rank >= best.rank) continue;
      best = merge;
      place = i;
    }
    if (best.rank == MergeTable::kNoRank) return path;
    path.highest_rank = std::max(path.highest_rank, best.rank);
    symbols[place] = best.id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
  path.token = symbols.front();
  return path;
}

}  // namespace

class CharacterTokens::Builder {
 public:
  Builder(const MergeTable& merges, std::span<const std::pair<std::string_view, int32_t>> tokens,
          const std::array<int32_t, 256>& byte_ids, CharacterTokens* result)
      : merges_(merges), byte_ids_(byte_ids), result_(*result) {
    struct Text {
      uint8_t first = 0;
      uint8_t last = 0;
      bool is_short = false;
    };
    std::vector<Text> texts;
    for (const auto& [text, id] : tokens) {
      if (text.empty()) continue;
      const auto place = static_cast<size_t>(id);
      if (place >= texts.size()) texts.resize(place + 1);
      texts[place] = {static_cast<uint8_t>(text.front()), static_cast<uint8_t>(text.back()),
                      text.size() <= kMaxText};
    }
    // A token without bytes is never part of a piece.
    const auto text_of = [&](int32_t id) {
      const auto place = static_cast<size_t>(id);
      return place < texts.size() ? texts[place] : Text{};
    };
    merges.for_each([&](int32_t left, int32_t right, const MergeTable::Merge& merge) {
      const Text left_text = text_of(left);
      const Text right_text = text_of(right);
      if (left_text.is_short) behind_.add({left, merge.rank, right_text.first});
      if (right_text.is_short) before_.add({right, merge.rank, left_text.last});
    });
    before_.sort();
    behind_.sort();
  }

  void add(std::string_view character) {
    const char32_t code_point = utf8_decode(character);
    if (code_point >= kEnd) return;
    const Entry entry = {.alone = way_of(character),
                         .behind_space = way_of(std::string(" ").append(character))};
    if (entry.alone.id == kNone && entry.behind_space.id == kNone) return;
    uint16_t& block = result_.block_of_[code_point >> kBlockBits];
    if (block == 0) {
      block = static_cast<uint16_t>(result_.blocks_.size());
      result_.blocks_.emplace_back();
    }
    result_.blocks_[block][code_point & (kBlockSize - 1)] = entry;
  }

 private:
  Way way_of(std::string_view text) {
    // There must be room for two more sets. Real vocabularies have a few hundred sets.
    if (result_.sets_.size() > UINT16_MAX - 1) return {};
    const Path path = path_of(text, merges_, byte_ids_);
    if (!path.token) return {};
    const auto comes_early = [&](const Neighbour& rule) { return rule.rank <= path.highest_rank; };
    for (const Neighbours* side : {&before_, &behind_}) {
      if (std::ranges::any_of(side->of(*path.token), comes_early)) return {};
    }
    const auto place_of_harmless = [&](const Neighbours& side, const std::vector<int32_t>& ends) {
      Bytes harmless;
      harmless.fill(UINT64_MAX);
      for (const int32_t end : ends) {
        for (const Neighbour& rule : side.of(end)) {
          if (comes_early(rule)) harmless[rule.byte / 64] &= ~(uint64_t{1} << rule.byte % 64);
        }
      }
      return place_of(harmless);
    };
    return {*path.token, place_of_harmless(before_, path.left_ends),
            place_of_harmless(behind_, path.right_ends)};
  }

  uint16_t place_of(const Bytes& set) {
    const auto [known, is_new] = places_.emplace(set, result_.sets_.size());
    if (is_new) result_.sets_.push_back(set);
    return static_cast<uint16_t>(known->second);
  }

  const MergeTable& merges_;
  const std::array<int32_t, 256>& byte_ids_;
  CharacterTokens& result_;
  Neighbours before_;  // by the right token of a rule
  Neighbours behind_;  // by the left token
  std::map<Bytes, size_t> places_;
};

CharacterTokens::CharacterTokens(const MergeTable& merges,
                                 std::span<const std::pair<std::string_view, int32_t>> tokens,
                                 const std::array<int32_t, 256>& byte_ids) {
  Builder builder(merges, tokens, byte_ids, this);
  for (const auto& [text, id] : tokens) {
    if (text.size() < 2) continue;
    const Utf8Step step = utf8_step(text);
    if (step.valid && step.bytes == text.size()) builder.add(text);
  }
}

}  // namespace allot::model
