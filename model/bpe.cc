#include "model/bpe.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "model/byte_level.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

// The heap's order: lowest rank on top, leftmost among equals.
bool merges_later(const BytePairEncoder::Candidate& a, const BytePairEncoder::Candidate& b) {
  return std::pair(a.rank, a.position) > std::pair(b.rank, b.position);
}

constexpr int kPlaceBits = 7;
constexpr size_t kFewBytes = size_t{1} << kPlaceBits;
constexpr int32_t kNoKey = INT32_MAX;
constexpr int32_t kNoSymbol = -1;  // end of the linked list of symbols

void refuse_if_set(const JsonView& model, const char* name) {
  const auto field = model.find(name);
  const bool empty = !field || field->value() == "" || field->value() == 0;
  if (!empty) {
    throw Unsupported(field->where() + " is " + field->shown() + ", supported is a BPE model without it");
  }
}

}  // namespace

BytePairEncoder::BytePairEncoder(const JsonView& model, const Vocabulary& vocabulary, bool byte_level)
    : byte_level_(byte_level),
      ignore_merges_(model.boolean_or("ignore_merges", false)),
      byte_fallback_(model.boolean_or("byte_fallback", false)),
      fuse_unk_(model.boolean_or("fuse_unk", false)),
      pieces_(vocabulary.ids().size()),
      merges_(model.at("merges").value().size()),
      whole_(std::make_unique<std::atomic<Whole>[]>(static_cast<size_t>(vocabulary.largest_id()) + 1)) {
  refuse_if_set(model, "dropout");
  refuse_if_set(model, "continuing_subword_prefix");
  refuse_if_set(model, "end_of_word_suffix");
  if (const auto unk = model.find("unk_token")) {
    unk_ = vocabulary.find(unk->text());
    if (!unk_) unk->fail("a token of the vocabulary");
  }
  for (const auto& [token, id] : vocabulary.ids()) {
    // A token outside the byte-level alphabet can come only from the added tokens, never from a piece.
    const std::optional<std::string> bytes = byte_level ? bytes_of_byte_level(token) : token;
    if (!bytes) continue;
    pieces_.insert(*bytes, id);
    if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>(bytes->front())] = id;
  }
  const bool every_byte = byte_level && std::all_of(byte_ids_.begin(), byte_ids_.end(),
                                                    [](const auto& id) { return id.has_value(); });
  constexpr char kHex[] = "0123456789ABCDEF";
  for (size_t byte = 0; byte < fallback_ids_.size(); ++byte) {
    fallback_ids_[byte] = vocabulary.find(std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">");
  }
  read_merges(model.at("merges"), vocabulary);
  const bool ranks_fit_keys = model.at("merges").value().size() < static_cast<size_t>(kNoKey >> kPlaceBits);
  if (!every_byte || !ranks_fit_keys) return;
  for (const auto& left : byte_ids_) {
    for (const auto& right : byte_ids_) byte_pairs_.push_back(merges_.find(*left, *right));
  }
  find_characters(vocabulary);
}

void BytePairEncoder::find_characters(const Vocabulary& vocabulary) {
  std::vector<std::string> texts;
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  texts.reserve(vocabulary.ids().size());
  for (const auto& [token, id] : vocabulary.ids()) {
    std::optional<std::string> bytes = bytes_of_byte_level(token);
    if (bytes) tokens.emplace_back(texts.emplace_back(std::move(*bytes)), id);
  }
  std::array<int32_t, 256> byte_ids{};
  std::transform(byte_ids_.begin(), byte_ids_.end(), byte_ids.begin(), [](const auto& id) { return *id; });
  characters_ = CharacterTokens(merges_, tokens, byte_ids);
}

// "a b" in older files, ["a", "b"] in newer ones.
void BytePairEncoder::read_merges(const JsonView& merges, const Vocabulary& vocabulary) {
  if (!merges.value().is_array()) merges.fail("a list of merges");
  uint32_t rank = 0;
  std::string merged;
  for (const nlohmann::json& rule : merges.value()) {
    const auto fail = [&](const std::string& expectation) {
      throw CorruptFile(merges.where() + "[" + std::to_string(rank) + "] is " + rule.dump() + ", expected " +
                        expectation);
    };
    std::string_view left;
    std::string_view right;
    if (rule.is_string()) {
      const std::string_view text = rule.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        fail("two tokens with one space between them");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (rule.is_array() && rule.size() == 2 && rule[0].is_string() && rule[1].is_string()) {
      left = rule[0].get_ref<const std::string&>();
      right = rule[1].get_ref<const std::string&>();
    } else {
      fail("two tokens");
    }
    merged.assign(left).append(right);
    const auto left_id = vocabulary.find(left);
    const auto right_id = vocabulary.find(right);
    const auto merged_id = vocabulary.find(merged);
    if (!left_id || !right_id || !merged_id) {
      fail("tokens of the vocabulary, which lacks \"" +
           std::string(!left_id    ? left
                       : !right_id ? right
                                   : std::string_view(merged)) +
           "\"");
    }
    merges_.insert(*left_id, *right_id, {rank, *merged_id});
    ++rank;
  }
}

void BytePairEncoder::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const {
  const auto token = pieces_.find(piece);
  if (!token) return encode_unless_known(piece, scratch, ids);
  const int32_t id = *token;
  if (ignore_merges_) return ids->push_back(id);
  std::atomic<Whole>& whole = whole_[static_cast<size_t>(id)];
  switch (whole.load(std::memory_order_relaxed)) {
    case Whole::kItself:
      return ids->push_back(id);
    case Whole::kMerges:
      return encode_unless_known(piece, scratch, ids);
    case Whole::kUnknown:
      break;
  }
  const size_t before = ids->size();
  encode_by_merging(piece, scratch, ids);
  const bool itself = ids->size() == before + 1 && ids->back() == id;
  whole.store(itself ? Whole::kItself : Whole::kMerges, std::memory_order_relaxed);
}

void BytePairEncoder::encode_unless_known(std::string_view piece, Scratch& scratch,
                                          std::vector<int32_t>* ids) const {
  const std::span<const int32_t> known = scratch.known.find(piece);
  if (!known.empty()) {
    ids->insert(ids->end(), known.begin(), known.end());
    return;
  }
  const size_t before = ids->size();
  encode_by_merging(piece, scratch, ids);
  scratch.known.insert(piece, std::span(*ids).subspan(before));
}

void BytePairEncoder::encode_by_merging(std::string_view piece, Scratch& scratch,
                                        std::vector<int32_t>* ids) const {
  if (!byte_pairs_.empty() && piece.size() <= kFewBytes) return encode_few_bytes(piece, ids);
  scratch.symbols.clear();
  add_symbols(piece, &scratch.symbols);
  const auto count = static_cast<int32_t>(scratch.symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    scratch.symbols[static_cast<size_t>(i)].previous = i - 1;
    scratch.symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : kNoSymbol;
  }
  merge(scratch);
  for (const Symbol& symbol : scratch.symbols) {
    if (!symbol.merged_away) ids->push_back(symbol.id);
  }
}

// Makes the same merges as with the heap, but searches all pairs each time. They are the same because a pair
// is never replaced by another one that spells the same token: the texts of two neighbours only grow.
void BytePairEncoder::encode_few_bytes(std::string_view piece, std::vector<int32_t>* ids) const {
  // A symbol stays at the position of its first part. The key of a pair, stored at its left symbol, is the
  // rank followed by the position, so that the smallest key is the leftmost pair of the lowest rank.
  constexpr size_t kNoByte = 0x100;
  std::array<int32_t, kFewBytes> symbols;
  std::array<int32_t, kFewBytes> keys;
  std::array<int32_t, kFewBytes> merged;  // what the pair becomes
  std::array<uint8_t, kFewBytes + 1> next;
  std::array<uint8_t, kFewBytes + 1> previous;
  const auto set_pair = [&](size_t place, const MergeTable::Merge& merge) {
    keys[place] =
        merge.rank == MergeTable::kNoRank ? kNoKey : static_cast<int32_t>(merge.rank << kPlaceBits | place);
    merged[place] = merge.id;
  };
  size_t count = 0;
  size_t byte_before = kNoByte;
  for (size_t at = 0; at < piece.size(); ++count) {
    size_t byte = static_cast<uint8_t>(piece[at]);
    const CharacterTokens::Start start = characters_.start_at(piece, at);
    if (start.bytes == 0) {
      symbols[count] = *byte_ids_[byte];
      ++at;
    } else {
      symbols[count] = start.id;
      byte = kNoByte;
      at += start.bytes;
    }
    next[count] = static_cast<uint8_t>(count + 1);
    previous[count + 1] = static_cast<uint8_t>(count);
    keys[count] = kNoKey;
    if (count > 0) {
      const bool bytes = (byte | byte_before) < kNoByte;
      set_pair(count - 1, bytes ? byte_pairs_[byte_before << 8 | byte]
                                : merges_.find(symbols[count - 1], symbols[count]));
    }
    byte_before = byte;
  }
  for (;;) {
    int32_t smallest = kNoKey;
    for (size_t i = 0; i < count; ++i) smallest = std::min(smallest, keys[i]);
    if (smallest == kNoKey) break;
    const size_t left = static_cast<size_t>(smallest) & (kFewBytes - 1);
    const size_t right = next[left];
    const size_t behind = next[right];
    symbols[left] = merged[left];
    keys[right] = kNoKey;
    next[left] = static_cast<uint8_t>(behind);
    previous[behind] = static_cast<uint8_t>(left);
    if (left > 0) set_pair(previous[left], merges_.find(symbols[previous[left]], symbols[left]));
    keys[left] = kNoKey;
    if (behind < count) set_pair(left, merges_.find(symbols[left], symbols[behind]));
  }
  for (size_t i = 0; i < count; i = next[i]) ids->push_back(symbols[i]);
}

void BytePairEncoder::add_symbols(std::string_view piece, std::vector<Symbol>* symbols) const {
  bool pending_unk = false;
  const auto flush = [&] {
    if (pending_unk) symbols->push_back({.id = *unk_});
    pending_unk = false;
  };
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, byte_level_ ? 1 : utf8_bytes(piece.front()));
    piece.remove_prefix(character.size());
    if (const auto id = symbol_of(character)) {
      flush();
      symbols->push_back({.id = *id});
    } else if (byte_fallback_ && add_fallback_bytes(written(character), symbols)) {
      // A pending unk stays pending and so comes after these bytes: the package's order, kept for equal ids.
    } else if (unk_) {
      if (!fuse_unk_) flush();
      pending_unk = true;
    }
  }
  flush();
}

std::optional<int32_t> BytePairEncoder::symbol_of(std::string_view character) const {
  if (byte_level_) return byte_ids_[static_cast<uint8_t>(character.front())];
  return pieces_.find(character);
}

// The character as the vocabulary writes it: behind ByteLevel, the package falls back to the bytes of the
// alphabet's character, not to the byte for which it stands.
std::string BytePairEncoder::written(std::string_view character) const {
  return byte_level_ ? byte_level_character(static_cast<uint8_t>(character.front())) : std::string(character);
}

// Adds the <0x..> tokens of all bytes, or nothing when one of them is missing.
bool BytePairEncoder::add_fallback_bytes(std::string_view character, std::vector<Symbol>* symbols) const {
  const auto id_of = [&](char byte) { return fallback_ids_[static_cast<uint8_t>(byte)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char byte) { return id_of(byte).has_value(); }))
    return false;
  for (const char byte : character) symbols->push_back({.id = *id_of(byte)});
  return true;
}

void BytePairEncoder::merge(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  heap.clear();
  const auto symbol_at = [&](int32_t position) -> Symbol& { return symbols[static_cast<size_t>(position)]; };
  const auto propose = [&](int32_t position) {
    const Symbol& left = symbol_at(position);
    const MergeTable::Merge rule = merges_.find(left.id, symbol_at(left.next).id);
    if (rule.rank == MergeTable::kNoRank) return false;
    heap.push_back({rule.rank, position, rule.id});
    return true;
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) propose(i);
  std::make_heap(heap.begin(), heap.end(), merges_later);
  const auto propose_on_heap = [&](int32_t position) {
    if (propose(position)) std::push_heap(heap.begin(), heap.end(), merges_later);
  };
  while (!heap.empty()) {
    const Candidate top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), merges_later);
    heap.pop_back();
    Symbol& left = symbol_at(top.position);
    if (left.merged_away || left.next == kNoSymbol) continue;
    Symbol& right = symbol_at(left.next);
    // The pair may have changed since it was proposed. Only the merged id is compared, as the package does:
    // another pair that spells the same token merges at the old pair's rank.
    const MergeTable::Merge rule = merges_.find(left.id, right.id);
    if (rule.rank == MergeTable::kNoRank || rule.id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.merged_away = true;
    if (left.next != kNoSymbol) symbol_at(left.next).previous = top.position;
    if (left.previous != kNoSymbol) propose_on_heap(left.previous);
    if (left.next != kNoSymbol) propose_on_heap(top.position);
  }
}

}  // namespace allot::model
