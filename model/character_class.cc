#include "model/character_class.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "model/regex.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

constexpr char32_t kEnd = 0x110000;

// Every code point once, in order. Surrogates have no UTF-8.
std::string all_code_points() {
  std::string text;
  for (char32_t c = 0; c < kEnd; ++c) {
    if (c < 0xD800 || c > 0xDFFF) text += utf8_encode(c);
  }
  return text;
}

void mark(std::string_view code_points, std::string_view run_pattern, CharacterClass kind,
          std::vector<CharacterClass>* classes) {
  const Regex runs = Regex::from_oniguruma(run_pattern);
  Regex::Scratch scratch;
  for (auto run = runs.find(code_points, 0, scratch); run; run = runs.find(code_points, run->end, scratch)) {
    std::string_view members = code_points.substr(run->begin, run->end - run->begin);
    while (!members.empty()) {
      const std::string_view member = members.substr(0, utf8_bytes(members.front()));
      (*classes)[utf8_decode(member)] = kind;
      members.remove_prefix(member.size());
    }
  }
}

}  // namespace

CharacterClasses::CharacterClasses() {
  std::vector<CharacterClass> classes(kEnd, CharacterClass::kOther);
  const std::string code_points = all_code_points();
  mark(code_points, R"(\p{L}+)", CharacterClass::kLetter, &classes);
  mark(code_points, R"(\p{N}+)", CharacterClass::kNumber, &classes);
  mark(code_points, R"(\s+)", CharacterClass::kSpace, &classes);
  classes['\r'] = classes['\n'] = CharacterClass::kNewline;

  for (size_t i = 0; i < block_of_.size(); ++i) {
    Block block;
    std::copy_n(classes.begin() + static_cast<ptrdiff_t>(i * kBlockSize), kBlockSize, block.begin());
    const auto place = std::find(blocks_.begin(), blocks_.end(), block);
    block_of_[i] = static_cast<uint16_t>(place - blocks_.begin());
    if (place == blocks_.end()) blocks_.push_back(block);
  }
}

const CharacterClasses& CharacterClasses::get() {
  static const CharacterClasses classes;
  return classes;
}

}  // namespace allot::model
