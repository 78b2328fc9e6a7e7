// The component Metaspace of SentencePiece's kind of tokenizer, as a pre-tokenizer and as a decoder: spaces
// are written as a visible character, and a text gets one more in front.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/json_view.h"
#include "model/replacement.h"

namespace allot::model {

// Where a stretch of text between added tokens lies in the whole text.
enum class TextPlace { kStart, kLater };

class Metaspace {
 public:
  // To which stretches a character is prepended, unless they begin with it.
  enum class Prepend { kAlways, kFirst, kNever };

  // Throws CorruptFile. A file without prepend_scheme means `always`, one without `split` means true.
  explicit Metaspace(const JsonView& component);

  Prepend prepend() const { return prepend_; }

  // Appends the pieces of `text` (UTF-8, not empty), each beginning with the character or at the text's
  // start. They point into `text`, or into `*buffer`, which is overwritten.
  void cut(std::string_view text, TextPlace place, std::string* buffer,
           std::vector<std::string_view>* pieces) const;

  // The character becomes a space in every token; in the first it is left out, unless nothing is prepended.
  void decode(std::vector<std::string>* tokens) const;

 private:
  bool prepends_to(std::string_view text, TextPlace place) const;

  std::string character_;
  Prepend prepend_;
  bool split_;
  Replacement spaces_;
};

}  // namespace allot::model
