// Byte-pair encoding of one piece: symbols are merged pair by pair, the pair of lowest rank first.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/character_tokens.h"
#include "model/json_view.h"
#include "model/merge_table.h"
#include "model/piece_cache.h"
#include "model/token_table.h"
#include "model/vocabulary.h"

namespace allot::model {

class BytePairEncoder {
 public:
  // `model` is the model of a tokenizer.json. `byte_level`: pieces are bytes and the vocabulary is written in
  // the byte-level alphabet; otherwise symbols are characters. Throws CorruptFile, or Unsupported for
  // dropout, continuing_subword_prefix and end_of_word_suffix.
  BytePairEncoder(const JsonView& model, const Vocabulary& vocabulary, bool byte_level);

  // Memory of one call, reused for all pieces and later calls of the same encoder.
  struct Symbol {
    int32_t id = 0;
    int32_t previous = 0;
    int32_t next = 0;
    bool merged_away = false;
  };
  struct Candidate {
    uint32_t rank = 0;
    int32_t position = 0;  // of the left symbol
    int32_t id = 0;        // of the merged symbol
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    PieceCache known;  // of one encoder's pieces
  };

  // Appends the ids of one piece, O(n log n) in its symbols (short pieces of bytes: O(n^2), which is faster).
  // Symbols that are neither in the vocabulary nor covered by byte_fallback or unk_token are dropped, as the
  // `tokenizers` package does. Safe from many threads.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const;
  // Prefetches the memory that encode(piece) will read first.
  void prefetch(std::string_view piece) const noexcept { pieces_.prefetch(piece); }

 private:
  // What encoding a piece that is itself a token gives; determined when the token is first met.
  enum class Whole : uint8_t { kUnknown, kItself, kMerges };

  void read_merges(const JsonView& merges, const Vocabulary& vocabulary);
  void find_characters(const Vocabulary& vocabulary);
  void encode_by_merging(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const;
  void encode_unless_known(std::string_view piece, Scratch& scratch, std::vector<int32_t>* ids) const;
  void encode_few_bytes(std::string_view piece, std::vector<int32_t>* ids) const;
  void add_symbols(std::string_view piece, std::vector<Symbol>* symbols) const;
  std::optional<int32_t> symbol_of(std::string_view character) const;
  std::string written(std::string_view character) const;
  bool add_fallback_bytes(std::string_view character, std::vector<Symbol>* symbols) const;
  void merge(Scratch& scratch) const;

  bool byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::optional<int32_t> unk_;
  TokenTable pieces_;                                     // texts as they occur in pieces
  std::array<std::optional<int32_t>, 256> byte_ids_;      // of a single byte: byte-level symbols
  std::array<std::optional<int32_t>, 256> fallback_ids_;  // of <0x00> to <0xFF>
  MergeTable merges_;
  // The rules for two byte symbols, by both bytes. Empty where some byte has no symbol, or where ranks are
  // too large for encode_few_bytes.
  std::vector<MergeTable::Merge> byte_pairs_;
  CharacterTokens characters_;  // for encode_few_bytes
  // By id. Each entry changes only once, from kUnknown to its value, so relaxed memory order is enough.
  std::unique_ptr<std::atomic<Whole>[]> whole_;
};

}  // namespace allot::model
