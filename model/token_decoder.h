// The decoder of a tokenizer.json: turns the texts of tokens into the decoded text.
#pragma once

#include <string>
#include <vector>

#include "model/json_view.h"

namespace allot::model {

class TokenDecoder {
 public:
  // Joins tokens with a space, as the `tokenizers` package does where a file names no decoder.
  TokenDecoder() = default;
  // ByteLevel, Fuse, ByteFallback or a Sequence of these. Throws CorruptFile, or Unsupported naming the type.
  explicit TokenDecoder(const JsonView& component);

  // Consumes the tokens. The result is UTF-8; invalid bytes become U+FFFD.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  enum class Step { kByteLevel, kFuse, kByteFallback };
  void add(const JsonView& component);

  std::vector<Step> steps_;
  bool join_with_space_ = true;
};

}  // namespace allot::model
