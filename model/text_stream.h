// The text of a reply while its tokens come: pieces that, put together, are the text of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "model/tokenizer.h"

namespace allot::model {

// Text of the ids that the tokenizer has. Models have rows for more tokens than the tokenizer knows
// (Qwen2-7B: 152,064), and one of those may be chosen, though rarely; such a token has no text.
std::string known_text(const Tokenizer& tokenizer, std::span<const int32_t> tokens,
                       bool skip_special_tokens = true);

// Special tokens have no text. A piece never ends within a character: bytes of one that further tokens may
// complete wait for these.
class TextStream {
 public:
  // `tokenizer` outlives this.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  // The text that `output`, all tokens of the reply so far, adds to the earlier pieces. `output` begins with
  // the tokens of the call before. Decodes the tokens of the last two pieces, not all.
  std::string add(std::span<const int32_t> output);
  // What still waits when the reply has ended.
  std::string rest(std::span<const int32_t> output);

 private:
  std::string piece(std::span<const int32_t> output, bool ended);

  const Tokenizer* tokenizer_;
  // A decoder may treat the first token it sees in its own way (the space before a word), so a piece is what
  // the tokens from context_ on have in excess of those up to given_.
  size_t context_ = 0;
  size_t given_ = 0;
};

}  // namespace allot::model
