// The decoder of a tokenizer.json: turns the texts of tokens into the decoded text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "model/json_view.h"

namespace allot::model {

class TokenDecoder {
 public:
  // Joins tokens with a space, as the `tokenizers` package does where a file names no decoder.
  TokenDecoder() = default;
  // ByteLevel, Metaspace, Replace of a String, ByteFallback, Fuse, Strip or a Sequence of these in any order,
  // each of which takes the tokens that the one before it leaves. Throws CorruptFile, or Unsupported naming
  // the type or what of it is not supported.
  explicit TokenDecoder(const JsonView& component);

  // Consumes the tokens. The result is UTF-8; invalid bytes become U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  using Tokens = std::vector<std::string>;
  void add(const JsonView& component);

  std::vector<std::function<void(Tokens*)>> steps_;
  size_t times_longer_ = 1;  // by all replacements
  bool join_with_space_ = true;
};

}  // namespace allot::model
