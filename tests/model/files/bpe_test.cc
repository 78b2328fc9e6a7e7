// Byte-pair encoding against its definition, and the tables it asks.
#include "model/bpe.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "model/byte_level.h"
#include "model/utf8.h"
#include "tests/repeats.h"

namespace allot::model {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// The definition: as long as a rule fits, merge the leftmost pair of the earliest rule.
class Definition {
 public:
  explicit Definition(const json& model) {
    for (const auto& [token, id] : model.at("vocab").items()) ids_[bytes_of_byte_level(token).value()] = id;
    for (const json& rule : model.at("merges")) {
      const auto bytes = [&](size_t side) {
        return bytes_of_byte_level(rule[side].get<std::string>()).value();
      };
      ranks_.emplace(std::pair(bytes(0), bytes(1)), ranks_.size());
    }
  }

  Ids encode(const std::string& piece) const {
    std::vector<std::string> symbols;
    for (const char byte : piece) symbols.emplace_back(1, byte);
    for (;;) {
      size_t best = 0;
      size_t lowest = ranks_.size();
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto rule = ranks_.find({symbols[i], symbols[i + 1]});
        if (rule == ranks_.end() || rule->second >= lowest) continue;
        lowest = rule->second;
        best = i;
      }
      if (lowest == ranks_.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& symbol : symbols) ids.push_back(ids_.at(symbol));
    return ids;
  }

 private:
  std::map<std::string, int32_t> ids_;
  std::map<std::pair<std::string, std::string>, size_t> ranks_;
};

// A golden tokenizer's model, so that tokens are not taken whole but merged.
json golden_model() {
  const auto path = std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/tokenizer/qwen2.json";
  return json::parse(read_file(path)).at("tokenizer").at("model");
}

TEST(BytePairEncoder, MergesPiecesOfAllLengthsByTheDefinition) {
  const json model = golden_model();
  const JsonView view(model, "qwen2.json");
  const Vocabulary vocabulary(view.at("vocab"));
  const BytePairEncoder encoder(view, vocabulary, true);
  const Definition definition(model);
  BytePairEncoder::Scratch scratch;
  const std::string parts[] = {"a",  "e",  "r",  "in",       "ing", "the", " re",
                               "un", "ed", "aa", "\xC3\xA9", "7",   "\xFF"};
  for (int seed = 0; seed < repeats(1500); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::string piece;
    // Beyond 128 bytes other code merges.
    const size_t bytes = 1 + random() % (seed % 3 == 0 ? 300 : 24);
    while (piece.size() < bytes) piece += parts[random() % std::size(parts)];
    for (const char* round : {"first", "remembered"}) {
      Ids ids;
      encoder.encode(piece, scratch, &ids);
      ASSERT_EQ(ids, definition.encode(piece)) << round << " " << testing::PrintToString(piece);
    }
  }
}

TEST(BytePairEncoder, PiecesAtTheBordersOfBothMergersAreMergedByTheDefinition) {
  const json model = golden_model();
  const JsonView view(model, "qwen2.json");
  const Vocabulary vocabulary(view.at("vocab"));
  const BytePairEncoder encoder(view, vocabulary, true);
  const Definition definition(model);
  BytePairEncoder::Scratch scratch;
  for (size_t bytes = 1; bytes <= 260; ++bytes) {
    std::string piece;
    while (piece.size() < bytes) piece += "receiving the";
    piece.resize(bytes);
    Ids ids;
    encoder.encode(piece, scratch, &ids);
    EXPECT_EQ(ids, definition.encode(piece)) << bytes;
  }
}

// The byte-level alphabet by byte.
std::array<std::string, 256> written_bytes() {
  std::array<std::string, 256> written;
  for (char32_t c = 0; c < 0x144; ++c) {
    const std::optional<std::string> byte = bytes_of_byte_level(utf8_encode(c));
    if (byte) written[static_cast<uint8_t>(byte->front())] = utf8_encode(c);
  }
  return written;
}

const std::string kCharacters[] = {
    "a",        " ",        "\xC3\xA9",     "\xC3\xA8",     "\xD0\xBF",
    "\xD1\x8F", "\xD1\xBF", "\xE4\xBD\xA0", "\xE4\xBD\xBF", "\xF0\x9F\x98\x80"};

std::string random_characters(size_t count, std::mt19937& random) {
  std::string text;
  while (count-- > 0) text += kCharacters[random() % std::size(kCharacters)];
  return text;
}

// A model of rules that cut characters anywhere, and join their parts with neighbours before, while and after
// they are whole; each token by one cut or by several.
json model_of_random_rules(std::mt19937& random) {
  const std::array<std::string, 256> written = written_bytes();
  const auto write = [&](const std::string& bytes) {
    std::string text;
    for (const char byte : bytes) text += written[static_cast<uint8_t>(byte)];
    return text;
  };
  std::map<std::string, int32_t> ids;
  std::set<std::pair<std::string, std::string>> known;
  json merges = json::array();
  for (size_t byte = 0; byte < 256; ++byte) ids.emplace(std::string(1, static_cast<char>(byte)), ids.size());
  const auto add = [&](const std::string& left, const std::string& right) {
    if (!ids.contains(left) || !ids.contains(right) || !known.emplace(left, right).second) return;
    ids.emplace(left + right, ids.size());
    merges.push_back({write(left), write(right)});
  };
  const size_t rules_first = random() % 8;
  const size_t rules_in_all = rules_first + random() % 60;
  while (known.size() < rules_in_all) {
    if (known.size() == rules_first) {
      for (const std::string& character : kCharacters) {
        for (size_t cut = 1; cut < character.size(); ++cut)
          add(character.substr(0, cut), character.substr(cut, 1));
      }
    }
    const std::string text = random_characters(3, random);
    const size_t begin = random() % text.size();
    const std::string merged = text.substr(begin, 2 + random() % 5);
    if (merged.size() < 2) continue;
    const size_t cut = 1 + random() % (merged.size() - 1);
    add(merged.substr(0, cut), merged.substr(cut));
  }
  json vocabulary = json::object();
  for (const auto& [text, id] : ids) vocabulary[write(text)] = id;
  // Numbers as a file has them.
  return json::parse(json{{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}.dump());
}

TEST(BytePairEncoder, CharactersThatMergingBeginsWithChangeNoId) {
  for (int seed = 0; seed < repeats(600); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(static_cast<uint32_t>(seed));
    const json model = model_of_random_rules(random);
    const JsonView view(model, "random rules");
    const Vocabulary vocabulary(view.at("vocab"));
    const BytePairEncoder encoder(view, vocabulary, true);
    const Definition definition(model);
    BytePairEncoder::Scratch scratch;
    for (int i = 0; i < 60; ++i) {
      const std::string piece = random_characters(1 + random() % 12, random);
      Ids ids;
      encoder.encode(piece, scratch, &ids);
      ASSERT_EQ(ids, definition.encode(piece)) << testing::PrintToString(piece);
    }
  }
}

TEST(PieceCache, KnowsWhatWasInsertedLastAndNothingElse) {
  PieceCache cache;
  EXPECT_TRUE(cache.find("never").empty());
  std::map<std::string, Ids> inserted;
  // More pieces than there are places.
  for (int32_t i = 0; i < 100'000; ++i) {
    const std::string piece = "piece " + std::to_string(i);
    const Ids ids(static_cast<size_t>(1 + i % 8), i);
    cache.insert(piece, ids);
    inserted[piece] = ids;
    const auto found = cache.find(piece);
    ASSERT_EQ(Ids(found.begin(), found.end()), ids);
  }
  size_t kept = 0;
  for (const auto& [piece, ids] : inserted) {
    const auto found = cache.find(piece);
    if (found.empty()) continue;
    EXPECT_EQ(Ids(found.begin(), found.end()), ids) << piece;
    ++kept;
  }
  EXPECT_GT(kept, 10'000u);
  EXPECT_LT(kept, inserted.size());
}

TEST(PieceCache, DoesNotKeepWhatFitsNoEntry) {
  PieceCache cache;
  const std::string largest(PieceCache::kMaxBytes, 'a');
  const Ids most(PieceCache::kMaxIds, 7);
  cache.insert(largest, most);
  EXPECT_EQ(cache.find(largest).size(), most.size());
  cache.insert(largest + "a", most);
  EXPECT_TRUE(cache.find(largest + "a").empty());
  cache.insert("b", Ids(PieceCache::kMaxIds + 1, 7));
  EXPECT_TRUE(cache.find("b").empty());
}

// Texts that differ in one byte only, at every place of every length: a short text is compared by its ends.
TEST(TokenTable, TellsTextsOfAllLengthsApart) {
  std::vector<std::string> texts = {""};
  for (size_t bytes = 1; bytes <= 40; ++bytes) {
    texts.emplace_back(bytes, 'a');
    for (size_t place = 0; place < bytes; ++place) {
      texts.emplace_back(bytes, 'a');
      texts.back()[place] = '\0';
    }
  }
  TokenTable table(texts.size());
  for (size_t i = 0; i < texts.size(); i += 2) table.insert(texts[i], static_cast<int32_t>(i));
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto found = table.find(texts[i]);
    ASSERT_EQ(found.has_value(), i % 2 == 0) << testing::PrintToString(texts[i]);
    if (found) {
      EXPECT_EQ(*found, static_cast<int32_t>(i));
    }
  }
}

}  // namespace
}  // namespace allot::model
