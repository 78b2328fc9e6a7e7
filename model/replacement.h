// The component Replace, which a tokenizer.json may have as a normalizer and as a decoder.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "model/json_view.h"

namespace allot::model {

class Replacement {
 public:
  // Text becomes `content` wherever it is `pattern`, which must not be empty.
  Replacement(std::string pattern, std::string content);
  // Reads a Replace of a String. `*times_longer` is how many times as long the components before it may make
  // a text, and is multiplied by this one's: files of a few bytes could otherwise ask for any amount of
  // memory. Throws CorruptFile, or Unsupported for a regular expression, an empty pattern, or texts that
  // could become more than 64 times as long.
  Replacement(const JsonView& component, size_t* times_longer);

  // `text` with every occurrence replaced, from left to right: `text` itself where there is none, else
  // `*buffer`, which is overwritten and must not hold `text`.
  std::string_view apply(std::string_view text, std::string* buffer) const;

  const std::string& pattern() const { return pattern_; }
  const std::string& content() const { return content_; }

 private:
  std::string pattern_;
  std::string content_;
};

}  // namespace allot::model
