#include "evaluation/gsm8k/latex.h"

#include <array>
#include <utility>
#include <vector>

#include "base/ascii.h"

namespace allot::evaluation::gsm8k {
namespace {

using Rule = std::pair<std::string_view, std::string_view>;

// Each first text is replaced by the second wherever it occurs; where two rules fit, the earlier one applies.
constexpr std::array<Rule, 22> kReplacements = {{
    {"\\$", "$"},          {"\\%", "%"},          {"{,}", ","},          {"\\,", "\x01"},
    {"\\!", ""},           {"\\;", " "},          {"\\:", " "},          {"\\ ", " "},
    {"\\(", " "},          {"\\)", " "},          {"\\[", " "},          {"\\]", " "},
    {"**", " "},           {"\\dfrac", "\\frac"}, {"\\tfrac", "\\frac"}, {"\xE2\x88\x92", "-"},  // minus sign
    {"\xC2\xA0", " "},      // no-break space
    {"\xE2\x80\xAF", " "},  // narrow no-break space
    {"\xE2\x80\x89", " "},  // thin space
    {"\xE2\x80\x99", "'"},  // apostrophe
    {"\\left", ""},        {"\\right", ""},
}};

// Commands whose argument is shown as it is. `\quad` has none and is a space.
constexpr std::array<std::string_view, 9> kFonts = {
    "\\text", "\\textbf", "\\textit", "\\mathrm", "\\mathbf", "\\mathit", "\\mbox", "\\bf", "\\boldsymbol"};

std::string_view command_at(std::string_view text) {
  size_t end = 1;
  while (end < text.size() && is_letter(text[end])) ++end;
  return text.substr(0, end);
}

bool is_font(std::string_view command) {
  for (const std::string_view font : kFonts)
    if (command == font) return true;
  return false;
}

}  // namespace

std::string plain_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<bool> font_braces;  // for each open brace: whether it belongs to a font command
  bool font_pending = false;      // a font command was just read, so the next brace belongs to it
  while (!text.empty()) {
    const std::string_view command = text.front() == '\\' ? command_at(text) : std::string_view{};
    if (is_font(command) || command == "\\quad") {
      font_pending = command != "\\quad";
      out += ' ';
      text.remove_prefix(command.size());
      continue;
    }
    const Rule* rule = nullptr;
    for (const Rule& candidate : kReplacements) {
      if (!text.starts_with(candidate.first)) continue;
      rule = &candidate;
      break;
    }
    if (rule != nullptr) {
      out += rule->second;
      text.remove_prefix(rule->first.size());
      continue;
    }
    const char c = text.front();
    text.remove_prefix(1);
    if (c == '~' && text.starts_with('\\') && is_font(command_at(text))) {
      out += ' ';  // a space that does not break; elsewhere "~18" means "about 18"
    } else if (c == '{') {
      font_braces.push_back(std::exchange(font_pending, false));
      out += font_braces.back() ? ' ' : '{';
    } else if (c == '}' && !font_braces.empty()) {
      out += font_braces.back() ? ' ' : '}';
      font_braces.pop_back();
    } else {
      if (!is_space(c)) font_pending = false;
      out += c;
    }
  }
  return out;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  constexpr std::string_view kBoxed = "\\boxed";
  constexpr size_t kPlainBrace = std::string_view::npos;
  std::optional<std::string_view> found;
  size_t found_start = 0;
  std::vector<size_t>
      open;  // per open brace: where its content starts when it is a \boxed{, else kPlainBrace
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      if (text.substr(i).starts_with(kBoxed)) {
        size_t brace = i + kBoxed.size();
        while (brace < text.size() && text[brace] == ' ') ++brace;
        if (brace < text.size() && text[brace] == '{') {
          open.push_back(brace + 1);
          i = brace;
          continue;
        }
      }
      if (i + 1 < text.size() && (text[i + 1] == '{' || text[i + 1] == '}')) ++i;  // an escaped brace is text
    } else if (c == '{') {
      open.push_back(kPlainBrace);
    } else if (c == '}' && !open.empty()) {
      const size_t start = open.back();
      open.pop_back();
      if (start != kPlainBrace && (!found || start > found_start)) {
        found = text.substr(start, i - start);
        found_start = start;
      }
    }
  }
  return found;
}

}  // namespace allot::evaluation::gsm8k
