#include "model/jinja/texts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/ascii.h"
#include "model/jinja/characters.h"

namespace allot::model::jinja {
namespace {

// Python's rules for letters beyond ASCII (one letter may become two) are not here.
void need_ascii(std::string_view text, std::string_view function) {
  for (const char byte : text)
    if (static_cast<unsigned char>(byte) >= 0x80)
      fail_unsupported(fmt::format("{} of a text with characters beyond ASCII is not supported", function));
}

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}
char upper(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - ('a' - 'A')) : c;
}

}  // namespace

const std::string& needed_text(const Value* value, std::string_view function) {
  if (value == nullptr) fail(fmt::format("{} lacks an argument", function));
  if (value->text() == nullptr) fail(fmt::format("{} takes a text, not {}", function, type_name(*value)));
  return *value->text();
}

int64_t count_of(const Value* given, std::string_view function) {
  if (given == nullptr || given->is_none()) return -1;
  if (!given->whole()) fail(fmt::format("{} takes an integer, not {}", function, type_name(*given)));
  return *given->whole();
}

std::string lowered(std::string text) {
  need_ascii(text, "lower");
  std::ranges::transform(text, text.begin(), lower);
  return text;
}
std::string uppered(std::string text) {
  need_ascii(text, "upper");
  std::ranges::transform(text, text.begin(), upper);
  return text;
}
std::string capitalised(std::string text) {
  need_ascii(text, "capitalize");
  std::ranges::transform(text, text.begin(), lower);
  if (!text.empty()) text[0] = upper(text[0]);
  return text;
}

std::string stripped(std::string_view text, const Value* set, Ends ends) {
  if (set == nullptr || set->is_none()) {
    if (ends != Ends::kEnd) text = strip_start(text);
    if (ends != Ends::kStart) text = strip_end(text);
    return std::string(text);
  }
  const std::vector<std::string_view> out = characters(needed_text(set, "strip"));
  const auto outside = [&](std::string_view character) { return std::ranges::count(out, character) > 0; };
  while (ends != Ends::kEnd && !text.empty() && outside(text.substr(0, utf8_bytes(text.front()))))
    text.remove_prefix(utf8_bytes(text.front()));
  while (ends != Ends::kStart && !text.empty() && outside(utf8_last(text)))
    text.remove_suffix(utf8_last(text).size());
  return std::string(text);
}

std::string replaced(const std::string& text, const std::string& old, const std::string& with, int64_t count,
                     Budget* budget) {
  if (old.empty()) fail_unsupported("replace of an empty text is not supported");
  std::string out;
  size_t at = 0;
  while (count != 0) {
    const size_t found = text.find(old, at);
    if (found == std::string::npos) break;
    budget->handle(found - at + with.size());
    out.append(text, at, found - at);
    out += with;
    at = found + old.size();
    --count;
  }
  budget->handle(text.size() - at);
  out.append(text, at);
  return out;
}

Value split(const std::string& text, const Value* separator, int64_t most, Budget* budget) {
  Values parts;
  const auto add = [&](std::string_view part) {
    budget->step();
    parts.emplace_back(part);
  };
  std::string_view rest = text;
  if (separator == nullptr || separator->is_none()) {
    for (rest = strip_start(rest); !rest.empty(); rest = strip_start(rest)) {
      if (most == 0) {
        add(strip_end(rest));
        break;
      }
      size_t end = 0;
      while (end < rest.size() && !is_wide_space(utf8_decode(rest.substr(end, utf8_bytes(rest[end])))))
        end += utf8_bytes(rest[end]);
      add(rest.substr(0, end));
      rest.remove_prefix(end);
      --most;
    }
  } else {
    const std::string& by = needed_text(separator, "split");
    if (by.empty()) fail("split takes a separator that is not empty");
    for (size_t found = rest.find(by); found != std::string_view::npos && most != 0; found = rest.find(by)) {
      add(rest.substr(0, found));
      rest.remove_prefix(found + by.size());
      --most;
    }
    add(rest);
  }
  return Value::sequence(std::move(parts));
}

bool has_end(const std::string& text, const Value* end, bool at_start, std::string_view function) {
  const auto matches = [&](const Value& one) {
    const std::string& wanted = needed_text(&one, function);
    return at_start ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  const Sequence* any = end != nullptr ? end->sequence() : nullptr;
  if (any == nullptr || any->kind != Sequence::Kind::kTuple) return matches(end != nullptr ? *end : Value());
  return std::ranges::any_of(any->values, matches);
}

std::string joined(const Values& values, std::string_view between, bool only_texts, Budget* budget) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    if (only_texts && values[i].text() == nullptr)
      fail(fmt::format("join takes texts, but element {} is {}", i, type_name(values[i])));
    budget->handle(between.size());
    if (i > 0) out += between;
    out += to_text(values[i], budget);
  }
  return out;
}

std::string indented(const std::string& text, const std::string& margin, bool first, bool blank,
                     Budget* budget) {
  std::vector<std::string> lines(1);
  std::string all = text;
  all += '\n';
  const std::vector<std::string_view> views = characters(all);
  for (size_t i = 0; i < views.size(); ++i) {
    const char32_t c = utf8_decode(views[i]);
    const bool ends =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) {
      lines.back() += views[i];
      continue;
    }
    if (c == '\r' && i + 1 < views.size() && views[i + 1] == "\n") ++i;
    if (i + 1 < views.size()) lines.emplace_back();
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    budget->handle(margin.size() + lines[i].size());
    if (i == 0 ? first : blank || !lines[i].empty()) out += margin;
    out += lines[i];
  }
  return out;
}

}  // namespace allot::model::jinja
