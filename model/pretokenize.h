// The pre-tokenizer of a tokenizer.json: cuts text into the pieces that the model encodes one by one.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/json_view.h"
#include "model/metaspace.h"
#include "model/piece_scanner.h"
#include "model/regex.h"

namespace allot::model {

// What happens to the matches of a split's pattern (names of the `tokenizers` package).
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  // Leaves text whole.
  PreTokenizer() = default;
  // ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit, Digits or a Sequence of these with ByteLevel
  // last, and Metaspace first where its prepend_scheme is. Throws CorruptFile, or Unsupported naming the
  // type.
  explicit PreTokenizer(const JsonView& component);

  // Memory of one call; the pieces of split() may point into it.
  struct Scratch {
    Regex::Scratch regex;
    std::vector<std::string_view> pieces;
    std::vector<std::string_view> cut;
    std::deque<std::string> changed;  // pieces that are not as in the text
  };

  // The pieces of `text` (UTF-8), which lies at `place` of a whole text; none of them is empty. They live as
  // long as `text` and until the next call with `scratch`. Pieces are plain text even where byte_level() is
  // true: the model does not need the byte-level alphabet.
  const std::vector<std::string_view>& split(std::string_view text, TextPlace place, Scratch& scratch) const;

  // The model sees bytes, not characters.
  bool byte_level() const { return byte_level_; }
  // Every piece is one character, so the caller may cut the text itself.
  bool every_character() const { return every_character_; }
  // Pieces depend on the place of the text.
  bool heeds_place() const { return heeds_place_; }

 private:
  // Every supported component but Metaspace cuts by a pattern; ByteLevel first puts a space in front.
  struct Step {
    bool add_prefix_space = false;
    std::optional<Regex> pattern;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    std::optional<PieceScanner> scanner = {};  // replaces pattern, behavior and invert
    std::optional<Metaspace> metaspace = {};   // replaces all the others
  };

  void add(const JsonView& component);
  void add_split(const JsonView& component);
  void add_metaspace(const JsonView& component);
  static void cut(const Step& step, std::string_view text, TextPlace place, Scratch& scratch);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool every_character_ = false;
  bool heeds_place_ = false;
};

}  // namespace allot::model
