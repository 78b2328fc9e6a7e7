#include "model/pretokenize.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/unicode_16.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

// GPT-2's pattern, with which ByteLevel cuts unless use_regex is false.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// \w+|[^\w\s]+ with the \w of Unicode's regular expressions (UTS 18), which the package uses here.
Regex whitespace_pattern() {
  const std::string word = Regex::word_members() + R"(\p{Join_Control})";
  return Regex::from_pcre2("[" + word + "]+|[^" + word + R"(\p{White_Space}]+)");
}

// The numbers of Unicode 17, because here the package uses Rust's standard library.
Regex number_pattern() {
  std::string numbers = R"([\p{N}\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6})";
  return Regex::from_pcre2(numbers.append(kNewDecimals).append(kNewOtherNumbers).append("]"));
}

SplitBehavior parse_behavior(const JsonView& field) {
  static constexpr std::array<std::pair<const char*, SplitBehavior>, 5> kNames = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  for (const auto& [name, behavior] : kNames) {
    if (field.text() == name) return behavior;
  }
  field.fail("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

struct Part {
  TextRange range;
  bool match = false;
};

// The matches of `pattern` and the text between them. An empty match right after a match is skipped.
std::vector<Part> find_parts(const Regex& pattern, std::string_view text, Regex::Scratch& scratch) {
  std::vector<Part> parts;
  std::optional<size_t> match_end;
  size_t covered = 0;
  for (size_t from = 0; from <= text.size();) {
    const auto match = pattern.find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && match_end == match->end) {
      from += from < text.size() ? utf8_bytes(text[from]) : 1;
      continue;
    }
    if (covered != match->begin) parts.push_back({{covered, match->begin}, false});
    parts.push_back({*match, true});
    from = covered = match->end;
    match_end = match->end;
  }
  if (covered != text.size()) parts.push_back({{covered, text.size()}, false});
  return parts;
}

// Joins parts that belong together. `joins(part, before)` says whether `part` extends the piece of the
// part before it.
template <typename Joins>
std::vector<TextRange> join_parts(const std::vector<Part>& parts, Joins joins) {
  std::vector<TextRange> pieces;
  bool match_before = false;
  for (const Part& part : parts) {
    if (!pieces.empty() && joins(part.match, match_before)) {
      pieces.back().begin = std::min(pieces.back().begin, part.range.begin);
      pieces.back().end = std::max(pieces.back().end, part.range.end);
    } else {
      pieces.push_back(part.range);
    }
    match_before = part.match;
  }
  return pieces;
}

std::vector<TextRange> apply_behavior(std::vector<Part> parts, SplitBehavior behavior) {
  const auto first_of_matches = [](bool match, bool match_before) { return match && !match_before; };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      [[fallthrough]];
    case SplitBehavior::kIsolated:
      return join_parts(parts, [](bool, bool) { return false; });
    case SplitBehavior::kContiguous:
      return join_parts(parts, [](bool match, bool match_before) { return match == match_before; });
    case SplitBehavior::kMergedWithPrevious:
      return join_parts(parts, first_of_matches);
    case SplitBehavior::kMergedWithNext:
      break;
  }
  std::reverse(parts.begin(), parts.end());
  std::vector<TextRange> pieces = join_parts(parts, first_of_matches);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonView& component) {
  add(component);
}

void PreTokenizer::add(const JsonView& component) {
  const std::string& type = component.at("type").text();
  if (byte_level_) {
    throw Unsupported(component.where() + " puts a " + type +
                      " after ByteLevel; supported is ByteLevel as the last");
  }
  if (type == "Sequence") {
    for (const JsonView& element : component.at("pretokenizers").elements()) add(element);
  } else if (type == "Split") {
    add_split(component);
  } else if (type == "Metaspace") {
    add_metaspace(component);
  } else if (type == "Whitespace") {
    steps_.push_back({.pattern = whitespace_pattern(), .behavior = SplitBehavior::kRemoved, .invert = true});
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(
        {.pattern = Regex::from_pcre2(R"(\p{White_Space})"), .behavior = SplitBehavior::kRemoved});
  } else if (type == "Digits") {
    const bool individual = component.boolean_or("individual_digits", false);
    steps_.push_back({.pattern = number_pattern(),
                      .behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    Step step;
    step.add_prefix_space = component.at("add_prefix_space").boolean();
    if (component.boolean_or("use_regex", true)) step.pattern = Regex::from_oniguruma(kByteLevelPattern);
    if (step.add_prefix_space || step.pattern) steps_.push_back(std::move(step));
  } else {
    throw Unsupported(component.where() + " has type " + type +
                      ", supported are ByteLevel, Metaspace, Split, Whitespace, WhitespaceSplit, Digits, "
                      "Sequence");
  }
  every_character_ = every_character_ && steps_.size() == 1;
}

void PreTokenizer::add_split(const JsonView& component) {
  const JsonView pattern = component.at("pattern");
  Step step;
  step.behavior = parse_behavior(component.at("behavior"));
  step.invert = component.boolean_or("invert", false);
  bool any_character = false;
  if (const auto regex = pattern.find("Regex")) {
    // Its pieces cover the text, so isolating matches and removing the text between them are the same.
    const bool isolates = step.behavior == SplitBehavior::kIsolated ||
                          (step.behavior == SplitBehavior::kRemoved && step.invert);
    if (isolates) step.scanner = PieceScanner::of(regex->text());
    if (!step.scanner) step.pattern = Regex::from_oniguruma(regex->text());
    any_character = regex->text() == R"([\s\S])" || regex->text() == R"([\S\s])";
  } else {
    step.pattern = Regex::from_literal(pattern.at("String").text());
    any_character = pattern.at("String").text().empty();
  }
  steps_.push_back(std::move(step));
  every_character_ =
      any_character && steps_.size() == 1 && steps_.back().behavior == SplitBehavior::kIsolated;
}

void PreTokenizer::add_metaspace(const JsonView& component) {
  Step step;
  step.metaspace.emplace(component);
  if (step.metaspace->prepend() == Metaspace::Prepend::kFirst) {
    // Behind others the package would ask where in the text each of their pieces began.
    if (!steps_.empty()) {
      throw Unsupported(
          component.where() +
          " has prepend_scheme first behind other pre-tokenizers; supported is first as the first");
    }
    heeds_place_ = true;
  }
  steps_.push_back(std::move(step));
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text, TextPlace place,
                                                         Scratch& scratch) const {
  scratch.changed.clear();
  scratch.pieces.clear();
  if (!text.empty()) scratch.pieces.push_back(text);
  for (const Step& step : steps_) {
    scratch.cut.clear();
    for (const std::string_view piece : scratch.pieces) cut(step, piece, place, scratch);
    scratch.pieces.swap(scratch.cut);
  }
  return scratch.pieces;
}

void PreTokenizer::cut(const Step& step, std::string_view text, TextPlace place, Scratch& scratch) {
  if (step.add_prefix_space && !text.starts_with(' ')) {
    text = scratch.changed.emplace_back(" ").append(text);
  }
  if (step.scanner) return step.scanner->split(text, &scratch.cut);
  if (step.metaspace) return step.metaspace->cut(text, place, &scratch.changed.emplace_back(), &scratch.cut);
  if (!step.pattern) {
    scratch.cut.push_back(text);
    return;
  }
  std::vector<Part> parts = find_parts(*step.pattern, text, scratch.regex);
  if (step.invert) {
    for (Part& part : parts) part.match = !part.match;
  }
  for (const TextRange& range : apply_behavior(std::move(parts), step.behavior)) {
    if (range.begin != range.end) scratch.cut.push_back(text.substr(range.begin, range.end - range.begin));
  }
}

}  // namespace allot::model
