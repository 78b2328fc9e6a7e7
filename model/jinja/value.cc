#include "model/jinja/value.h"

#include <spdlog/fmt/fmt.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "model/jinja/characters.h"

namespace allot::model::jinja {
namespace {

constexpr int32_t kMostDepth = 64;  // of lists in lists

// Methods of Python's types, by which an attribute of the name is no undefined value.
constexpr std::string_view kPythonTextMethods[] = {
    "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
    "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
    "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
    "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
    "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
    "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
    "swapcase",   "title",        "translate",    "upper",   "zfill"};
constexpr std::string_view kPythonMappingMethods[] = {
    "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"};
constexpr std::string_view kPythonListMethods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                                   "insert", "pop",   "remove", "reverse", "sort"};

int32_t depth_of(const Value& value) {
  check_part(value);
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Mapping* mapping = value.mapping()) return mapping->depth;
  return 0;
}

int32_t checked_depth(int32_t parts) {
  if (parts >= kMostDepth)
    fail_unsupported(
        fmt::format("lists and mappings are {} deep, at most {} is supported", parts + 1, kMostDepth));
  return parts + 1;
}

// repr(float) of Python.
std::string real_text(double real) {
  if (std::isnan(real)) return "nan";
  if (std::isinf(real)) return real > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", real);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

// repr(str) of Python.
std::string in_quotes(std::string_view text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const std::string_view character : characters(text)) {
    const char32_t c = utf8_decode(character);
    if (c == '\\' || c == static_cast<unsigned char>(quote)) {
      out += '\\';
      out += character;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out += character;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
  return out;
}

// repr() of Python: what a list shows of its elements.
std::string shown(const Value& value, Budget* budget) {
  budget->step();
  if (const std::string* text = value.text()) {
    budget->handle(text->size());
    return in_quotes(*text);
  }
  if (value.is_undefined()) return "Undefined";
  return to_text(value, budget);
}

std::string json_text(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  for (const std::string_view character : characters(text)) {
    const char32_t c = utf8_decode(character);
    constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const size_t escape = character.size() == 1 ? kEscaped.find(character[0]) : std::string::npos;
    if (escape != std::string::npos) {
      out += '\\';
      out += kLetters[escape];
    } else if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (ensure_ascii && c >= 0x10000) {
      const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else {
      out += character;
    }
  }
  out += '"';
  return out;
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget* budget) : style_(style), budget_(budget) {
    between_ = style.separators ? style.separators->first : style.indent ? "," : ", ";
    behind_key_ = style.separators ? style.separators->second : ": ";
  }
  void write(const Value& value, int64_t level) {
    budget_->step();
    const size_t before = out_.size();
    if (const std::string* text = value.text()) {
      out_ += json_text(*text, style_.ensure_ascii);
    } else if (value.is_none()) {
      out_ += "null";
    } else if (const bool* boolean = value.boolean()) {
      out_ += *boolean ? "true" : "false";
    } else if (value.integer() != nullptr || value.real() != nullptr) {
      out_ += to_text(value, budget_);
    } else if (value.mapping() != nullptr) {
      write_mapping(*value.mapping(), level);
    } else if (value.sequence() != nullptr && value.sequence()->kind <= Sequence::Kind::kTuple) {
      write_list(value.sequence()->values, level);
    } else {
      fail(fmt::format("tojson: {} has no JSON", type_name(value)));
    }
    budget_->handle(out_.size() - before);
  }
  std::string take() { return std::move(out_); }

 private:
  void new_line(int64_t level) {
    if (!style_.indent) return;
    const auto spaces = static_cast<size_t>(std::max<int64_t>(*style_.indent, 0) * level);
    budget_->handle(spaces);
    out_ += '\n';
    out_.append(spaces, ' ');
  }
  void write_list(const Values& values, int64_t level) {
    out_ += '[';
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out_ += between_;
      new_line(level + 1);
      write(values[i], level + 1);
    }
    if (!values.empty()) new_line(level);
    out_ += ']';
  }
  void write_mapping(const Mapping& mapping, int64_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : mapping.entries) {
      if (entry.first.text() == nullptr)
        fail_unsupported(fmt::format("tojson: {} as a key is not supported", type_name(entry.first)));
      entries.push_back(&entry);
    }
    if (style_.sort_keys)
      std::ranges::sort(entries, {},
                        [](const auto* entry) { return std::string_view(*entry->first.text()); });
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += between_;
      new_line(level + 1);
      out_ += json_text(*entries[i]->first.text(), style_.ensure_ascii);
      out_ += behind_key_;
      write(entries[i]->second, level + 1);
    }
    if (!entries.empty()) new_line(level);
    out_ += '}';
  }

  const JsonStyle& style_;
  Budget* budget_;
  std::string between_;
  std::string behind_key_;
  std::string out_;
};

Value loop_attribute(const Loop& loop, const std::string& name) {
  const auto count = static_cast<int64_t>(loop.values->size());
  const auto index0 = static_cast<int64_t>(loop.index0);
  if (name == "index") return Value(index0 + 1);
  if (name == "index0") return Value(index0);
  if (name == "revindex") return Value(count - index0);
  if (name == "revindex0") return Value(count - index0 - 1);
  if (name == "first") return Value(index0 == 0);
  if (name == "last") return Value(index0 == count - 1);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(int64_t{1});  // grows in recursive loops only, which are not supported
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem")
    return index0 > 0 ? (*loop.values)[loop.index0 - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem")
    return index0 + 1 < count ? (*loop.values)[loop.index0 + 1] : Value(Undefined{"there is no next item"});
  fail_unsupported(fmt::format("loop.{} is not supported", name));
}

std::optional<Value> method(const Value& value, const std::string& name) {
  const auto known = [&](const auto& names) { return std::ranges::find(names, name) != std::end(names); };
  const Sequence* sequence = value.sequence();
  if ((value.text() != nullptr && known(kPythonTextMethods)) ||
      (value.mapping() != nullptr && known(kPythonMappingMethods)) ||
      (sequence != nullptr && known(kPythonListMethods)))
    return Value(Function{name});
  return std::nullopt;
}

std::optional<Value> element(const Value& value, const Value& key, Budget* budget) {
  if (const Mapping* mapping = value.mapping()) {
    const Value* found = find(*mapping, key, budget);
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  const std::optional<int64_t> index = key.whole();
  if (!index) return std::nullopt;
  if (const std::string* text = value.text()) {
    budget->handle(text->size());
    const std::vector<std::string_view> views = characters(*text);
    const int64_t at = *index < 0 ? *index + std::ssize(views) : *index;
    if (at < 0 || at >= std::ssize(views)) return std::nullopt;
    return Value(views[static_cast<size_t>(at)]);
  }
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr || sequence->kind > Sequence::Kind::kRange) return std::nullopt;
  const int64_t at = *index < 0 ? *index + std::ssize(sequence->values) : *index;
  if (at < 0 || at >= std::ssize(sequence->values)) return std::nullopt;
  return sequence->values[static_cast<size_t>(at)];
}

Value absent(const Value& value, const std::string& name) {
  if (const Undefined* undefined = value.undefined()) fail(undefined->what);
  return Value(Undefined{fmt::format("{} has no \"{}\"", type_name(value), name)});
}

}  // namespace

void fail(std::string message) {
  throw Fault(Fault::Kind::kError, std::move(message));
}

void fail_unsupported(std::string message) {
  throw Fault(Fault::Kind::kUnsupported, std::move(message));
}

void check_part(const Value& value) {
  if (value.variables() != nullptr || value.loop() != nullptr)
    fail_unsupported(fmt::format("{} as a part of another value is not supported", type_name(value)));
}

void Budget::step(int64_t steps) {
  steps_ -= steps;
  if (steps_ < 0) fail_unsupported("the template takes more steps than a rendering may take");
}

void Budget::handle(size_t bytes) {
  bytes_ -= static_cast<int64_t>(bytes);
  if (bytes_ < 0) fail_unsupported("the template handles more text than a rendering may handle");
}

Value Value::sequence(Values values, Sequence::Kind kind) {
  int32_t depth = 0;
  for (const Value& value : values) depth = std::max(depth, depth_of(value));
  Value made;
  made.data_ = std::make_shared<Sequence>(
      Sequence{.kind = kind, .values = std::move(values), .depth = checked_depth(depth), .taken = 0});
  return made;
}

Value Value::mapping(std::vector<std::pair<Value, Value>> entries) {
  int32_t depth = 0;
  for (const auto& [key, value] : entries) depth = std::max({depth, depth_of(key), depth_of(value)});
  Value made;
  made.data_ =
      std::make_shared<const Mapping>(Mapping{.entries = std::move(entries), .depth = checked_depth(depth)});
  return made;
}

const std::string* Value::text() const {
  const auto* held = std::get_if<std::shared_ptr<const std::string>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

Sequence* Value::sequence() const {
  const auto* held = std::get_if<std::shared_ptr<Sequence>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

const Mapping* Value::mapping() const {
  const auto* held = std::get_if<std::shared_ptr<const Mapping>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

Namespace* Value::variables() const {
  const auto* held = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

const Loop* Value::loop() const {
  const auto* held = std::get_if<std::shared_ptr<const Loop>>(&data_);
  return held != nullptr ? held->get() : nullptr;
}

std::optional<int64_t> Value::whole() const {
  if (boolean() != nullptr) return *boolean() ? 1 : 0;
  return integer() != nullptr ? std::optional(*integer()) : std::nullopt;
}

std::optional<double> Value::number() const {
  if (real() != nullptr) return *real();
  const std::optional<int64_t> integer = whole();
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

std::string_view type_name(const Value& value) {
  constexpr std::array<std::string_view, 11> kNames = {
      "an undefined value", "none",        "a boolean", "an integer", "a real number", "a text", "a list",
      "a mapping",          "a namespace", "a loop",    "a function"};
  return kNames[value.kind()];
}

bool truth(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = value.number()) return *number != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Sequence* sequence = value.sequence())
    return sequence->kind == Sequence::Kind::kGenerator || !sequence->values.empty();
  if (const Mapping* mapping = value.mapping()) return !mapping->entries.empty();
  return true;
}

bool equal(const Value& left, const Value& right, Budget* budget) {
  budget->step();
  if (const auto a = left.whole(), b = right.whole(); a && b) return *a == *b;
  if (const auto a = left.number(), b = right.number(); a && b) return *a == *b;
  if (left.kind() != right.kind()) return false;
  if (const std::string* text = left.text()) {
    budget->handle(text->size());
    return *text == *right.text();
  }
  if (const Sequence* a = left.sequence()) {
    const Sequence* b = right.sequence();
    if (a == b) return true;
    if (a->kind != b->kind || a->kind > Sequence::Kind::kRange || a->values.size() != b->values.size())
      return false;
    for (size_t i = 0; i < a->values.size(); ++i)
      if (!equal(a->values[i], b->values[i], budget)) return false;
    return true;
  }
  if (const Mapping* a = left.mapping()) {
    const Mapping* b = right.mapping();
    if (a->entries.size() != b->entries.size()) return false;
    return std::ranges::all_of(a->entries, [&](const auto& entry) {
      const Value* other = find(*b, entry.first, budget);
      return other != nullptr && equal(entry.second, *other, budget);
    });
  }
  if (left.is_undefined() || left.is_none()) return true;
  if (const Function* function = left.function())
    fail_unsupported(fmt::format("comparing the function {} is not supported", function->name));
  return left.variables() == right.variables() && left.loop() == right.loop();
}

bool less(const Value& left, const Value& right, Budget* budget) {
  if (const auto a = left.whole(), b = right.whole(); a && b) return *a < *b;
  if (const auto a = left.number(), b = right.number(); a && b) return *a < *b;
  if (left.text() != nullptr && right.text() != nullptr) {
    budget->handle(left.text()->size());
    return *left.text() < *right.text();  // bytes of UTF-8 are in the order of code points
  }
  if (left.is_undefined()) fail(left.undefined()->what);
  if (right.is_undefined()) fail(right.undefined()->what);
  fail(fmt::format("{} and {} have no order", type_name(left), type_name(right)));
}

std::string to_text(const Value& value, Budget* budget) {
  budget->step();
  if (const std::string* text = value.text()) {
    budget->handle(text->size());
    return *text;
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* boolean = value.boolean()) return *boolean ? "True" : "False";
  if (const int64_t* integer = value.integer()) return std::to_string(*integer);
  if (const double* real = value.real()) return real_text(*real);
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr && sequence->kind <= Sequence::Kind::kTuple) {
    const bool list = sequence->kind == Sequence::Kind::kList;
    std::string out = list ? "[" : "(";
    for (size_t i = 0; i < sequence->values.size(); ++i) {
      if (i > 0) out += ", ";
      out += shown(sequence->values[i], budget);
    }
    if (!list && sequence->values.size() == 1) out += ',';
    out += list ? ']' : ')';
    budget->handle(out.size());
    return out;
  }
  if (const Mapping* mapping = value.mapping()) {
    std::string out = "{";
    for (const auto& [key, held] : mapping->entries) {
      if (out.size() > 1) out += ", ";
      out += shown(key, budget);
      out += ": ";
      out += shown(held, budget);
    }
    out += '}';
    budget->handle(out.size());
    return out;
  }
  fail_unsupported(fmt::format("{} as text is not supported",
                               value.sequence() != nullptr ? "a generator or range" : type_name(value)));
}

std::string to_json(const Value& value, const JsonStyle& style, Budget* budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

Values elements(const Value& value, Budget* budget) {
  Values found;
  if (value.is_undefined()) return found;
  if (Sequence* sequence = value.sequence()) {
    if (sequence->kind == Sequence::Kind::kGenerator) {
      const auto begin = sequence->values.begin() + static_cast<std::ptrdiff_t>(sequence->taken);
      sequence->taken = sequence->values.size();
      found.assign(begin, sequence->values.end());
    } else {
      found = sequence->values;
    }
  } else if (const Mapping* mapping = value.mapping()) {
    for (const auto& entry : mapping->entries) found.push_back(entry.first);
  } else if (const std::string* text = value.text()) {
    budget->step(static_cast<int64_t>(count_characters(*text)));
    for (const std::string_view character : characters(*text)) found.emplace_back(character);
  } else {
    fail(fmt::format("{} has no elements to go through", type_name(value)));
  }
  budget->step(std::ssize(found));
  return found;
}

int64_t length(const Value& value, Budget* budget) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) {
    budget->handle(text->size());
    return static_cast<int64_t>(count_characters(*text));
  }
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind != Sequence::Kind::kGenerator)
    return std::ssize(sequence->values);
  if (const Mapping* mapping = value.mapping()) return std::ssize(mapping->entries);
  fail(fmt::format("{} has no length", sequence != nullptr ? "a generator" : type_name(value)));
}

const Value* find(const Mapping& mapping, const Value& key, Budget* budget) {
  for (const auto& [name, value] : mapping.entries)
    if (equal(name, key, budget)) return &value;
  return nullptr;
}

Value item(const Value& value, const Value& key, Budget* budget) {
  if (const auto found = element(value, key, budget)) return *found;
  if (const std::string* name = key.text())
    return value.mapping() != nullptr || value.text() != nullptr || value.sequence() != nullptr
               ? method(value, *name).value_or(absent(value, *name))
               : attribute(value, *name, budget);
  return absent(value, key.whole() ? std::to_string(*key.whole()) : std::string(type_name(key)));
}

Value attribute(const Value& value, const std::string& name, Budget* budget) {
  if (const Loop* loop = value.loop()) return loop_attribute(*loop, name);
  if (const Namespace* variables = value.variables()) {
    budget->step(std::ssize(variables->entries));
    for (const auto& [known, held] : variables->entries)
      if (known == name) return held;
    return absent(value, name);
  }
  if (const auto found = method(value, name)) return *found;
  if (const auto found = element(value, Value(name), budget)) return *found;
  return absent(value, name);
}

Value slice(const Value& value, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
            Budget* budget) {
  if (const Undefined* undefined = value.undefined()) fail(undefined->what);
  if (step == 0) fail("the step of a slice is 0");
  const Sequence* sequence = value.sequence();
  std::vector<std::string_view> views;
  if (const std::string* text = value.text()) {
    budget->handle(text->size());
    views = characters(*text);
  } else if (sequence == nullptr || sequence->kind > Sequence::Kind::kTuple) {
    fail_unsupported(fmt::format("a slice of {} is not supported", type_name(value)));
  }
  const int64_t size = sequence != nullptr ? std::ssize(sequence->values) : std::ssize(views);
  // PySlice_AdjustIndices: with a step backwards the ends are one in front of the first and the last element.
  const auto end = [&](std::optional<int64_t> given, int64_t usual) {
    if (!given) return usual;
    const int64_t at = *given < 0 ? std::max(*given, -size - 1) + size : *given;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t from = end(start, step > 0 ? 0 : size - 1);
  const int64_t to = end(stop, step > 0 ? size : -1);
  step = std::clamp(step, -size - 1, size + 1);
  std::string text;
  Values values;
  for (int64_t at = from; step > 0 ? at < to : at > to; at += step) {
    budget->step();
    if (sequence != nullptr) {
      values.push_back(sequence->values[static_cast<size_t>(at)]);
    } else {
      text += views[static_cast<size_t>(at)];
    }
  }
  if (sequence == nullptr) return Value(std::move(text));
  return Value::sequence(std::move(values), sequence->kind);
}

}  // namespace allot::model::jinja
