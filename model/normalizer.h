// The normalizer of a tokenizer.json: changes text before it is cut into pieces.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/json_view.h"
#include "model/replacement.h"

namespace allot::model {

class Normalizer {
 public:
  // Changes nothing.
  Normalizer() = default;
  // NFC, Prepend, Replace of a String, or a Sequence of these. Throws CorruptFile, or Unsupported naming the
  // type or what of it is not supported.
  explicit Normalizer(const JsonView& component);

  using Scratch = std::array<std::string, 2>;

  // `text` (UTF-8) normalized: `text` itself where nothing changes it, else in `scratch`, until the next call
  // with it.
  std::string_view apply(std::string_view text, Scratch& scratch) const;

  // Whether the package counts what a normalized text begins with as the beginning of the text: not after a
  // Replace that leaves characters out or whose pattern has several.
  bool keeps_start() const { return keeps_start_; }

 private:
  struct Nfc {};
  struct Prepend {
    std::string prefix;
  };
  void add(const JsonView& component);

  std::vector<std::variant<Nfc, Prepend, Replacement>> steps_;
  size_t times_longer_ = 1;  // by all replacements
  bool keeps_start_ = true;
};

}  // namespace allot::model
