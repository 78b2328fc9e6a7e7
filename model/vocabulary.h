// The vocabulary of a tokenizer.json's model: token texts and their ids.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/json_view.h"

namespace allot::model {

// Lets a map of strings be searched with a string_view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};
using TokenMap = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

// The largest id accepted; far above any real vocabulary, low enough to index tables.
inline constexpr int32_t kMaxTokenId = (1 << 24) - 1;

class Vocabulary {
 public:
  // Reads an object from token to id. Throws CorruptFile when an id is out of range or given to two tokens.
  explicit Vocabulary(const JsonView& vocab);

  const TokenMap& ids() const { return ids_; }
  std::optional<int32_t> find(std::string_view token) const;
  // Null when no token has this id.
  const std::string* token(int32_t id) const;
  int32_t largest_id() const { return static_cast<int32_t>(tokens_.size()) - 1; }

 private:
  TokenMap ids_;
  std::vector<const std::string*> tokens_;  // by id; the keys of ids_, which stay in place
};

}  // namespace allot::model
