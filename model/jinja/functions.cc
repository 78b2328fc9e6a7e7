#include "model/jinja/functions.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "base/ascii.h"
#include "model/jinja/texts.h"

namespace allot::model::jinja {
namespace {

template <class Row>
std::string names_of(const Row& rows) {
  std::string names;
  for (const auto& row : rows) {
    if (!names.empty()) names += ", ";
    names += row.first;
  }
  return names;
}

// ---- lists ----

// `path` of map(attribute=…) and selectattr: names and indices with dots between them.
Value at_path(Value value, const Value& path, Budget* budget) {
  if (path.whole()) return item(value, path, budget);
  std::string_view rest = needed_text(&path, "attribute");
  while (true) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool index = !part.empty() && part.size() < 10 && std::ranges::all_of(part, is_digit);
    value = item(value, index ? Value(int64_t{std::stoll(std::string(part))}) : Value(part), budget);
    if (dot == rest.size()) return value;
    rest.remove_prefix(dot + 1);
  }
}

Arguments without_first(const Arguments& arguments, size_t count) {
  Arguments rest = arguments;
  rest.in_order.erase(rest.in_order.begin(), rest.in_order.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                         count, rest.in_order.size())));
  return rest;
}

// select, reject, selectattr and rejectattr.
Value selected(const Value& input, const Arguments& arguments, bool by_attribute, bool wanted,
               Budget* budget) {
  const size_t test_at = by_attribute ? 1 : 0;
  if (arguments.in_order.size() < test_at) fail("selectattr and rejectattr lack the attribute's name");
  const bool tested = arguments.in_order.size() > test_at;
  const Arguments rest = without_first(arguments, test_at + 1);
  Values kept;
  for (const Value& value : elements(input, budget)) {
    const Value looked_at = by_attribute ? at_path(value, arguments.in_order[0], budget) : value;
    const bool holds = tested ? apply_test(needed_text(&arguments.in_order[test_at], "a test's name"),
                                           looked_at, rest, budget)
                              : truth(looked_at);
    if (holds == wanted) kept.push_back(value);
  }
  return Value::sequence(std::move(kept), Sequence::Kind::kGenerator);
}

Value mapped(const Value& input, const Arguments& arguments, Budget* budget) {
  Values made;
  if (arguments.in_order.empty()) {
    const auto given = bind("map", arguments, {"", "attribute", "default"});
    if (given[1] == nullptr) fail("map lacks the name of a filter or an attribute");
    for (const Value& value : elements(input, budget)) {
      Value found = at_path(value, *given[1], budget);
      made.push_back(found.is_undefined() && given[2] != nullptr ? *given[2] : std::move(found));
    }
  } else {
    const std::string& filter = needed_text(&arguments.in_order[0], "map");
    // The characters of a text have characters: it could go as deep as there are arguments.
    if (filter == "map") fail_unsupported("map of map is not supported");
    const Arguments rest = without_first(arguments, 1);
    for (const Value& value : elements(input, budget))
      made.push_back(apply_filter(filter, value, rest, budget));
  }
  return Value::sequence(std::move(made), Sequence::Kind::kGenerator);
}

Value pairs_of(const Mapping& mapping, Sequence::Kind kind, Budget* budget) {
  Values pairs;
  for (const auto& [key, value] : mapping.entries) {
    budget->step();
    pairs.push_back(Value::sequence({key, value}, Sequence::Kind::kTuple));
  }
  return Value::sequence(std::move(pairs), kind);
}

Value end_of(const Value& input, bool first, Budget* budget) {
  Sequence* sequence = input.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kGenerator) {
    if (!first) fail("last of a generator: it can only be gone through forwards");
    if (sequence->taken == sequence->values.size()) return Undefined{"the generator has no further element"};
    return sequence->values[sequence->taken++];
  }
  const Values all = elements(input, budget);
  if (all.empty()) return Undefined{"there is no first and no last element"};
  return first ? all.front() : all.back();
}

// ---- tables ----

using Filter = Value (*)(const Value& input, const Arguments& arguments, Budget* budget);

Value filter_default(const Value& input, const Arguments& arguments, Budget*) {
  const auto given = bind("default", arguments, {"default_value", "boolean"});
  const bool by_truth = given[1] != nullptr && truth(*given[1]);
  if (!input.is_undefined() && (!by_truth || truth(input))) return input;
  return given[0] != nullptr ? *given[0] : Value("");
}

Value filter_length(const Value& input, const Arguments& arguments, Budget* budget) {
  bind("length", arguments, {});
  return Value(length(input, budget));
}

Value filter_tojson(const Value& input, const Arguments& arguments, Budget* budget) {
  const auto given = bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  if (given[0] != nullptr) style.ensure_ascii = truth(*given[0]);
  if (given[1] != nullptr && !given[1]->is_none()) style.indent = count_of(given[1], "tojson's indent");
  if (style.indent && *style.indent > 64) fail_unsupported("tojson with an indent above 64 is not supported");
  if (given[2] != nullptr && !given[2]->is_none()) {
    const Sequence* two = given[2]->sequence();
    if (two == nullptr || two->values.size() != 2) fail("tojson takes two separators");
    style.separators = {needed_text(&two->values[0], "tojson"), needed_text(&two->values[1], "tojson")};
  }
  if (given[3] != nullptr) style.sort_keys = truth(*given[3]);
  return Value(to_json(input, style, budget));
}

Value filter_join(const Value& input, const Arguments& arguments, Budget* budget) {
  const auto given = bind("join", arguments, {"d", "attribute"});
  Values values = elements(input, budget);
  if (given[1] != nullptr)
    for (Value& value : values) value = at_path(value, *given[1], budget);
  return Value(joined(values, given[0] != nullptr ? to_text(*given[0], budget) : "", false, budget));
}

Value filter_replace(const Value& input, const Arguments& arguments, Budget* budget) {
  const auto given = bind("replace", arguments, {"old", "new", "count"});
  return Value(replaced(to_text(input, budget), needed_text(given[0], "replace"),
                        needed_text(given[1], "replace"), count_of(given[2], "replace"), budget));
}

Value filter_indent(const Value& input, const Arguments& arguments, Budget* budget) {
  const auto given = bind("indent", arguments, {"width", "first", "blank"});
  std::string margin(4, ' ');
  if (given[0] != nullptr && given[0]->text() != nullptr) {
    margin = *given[0]->text();
  } else if (given[0] != nullptr) {
    const int64_t width = std::max<int64_t>(count_of(given[0], "indent"), 0);
    if (width > 1024) fail_unsupported("indent by more than 1024 is not supported");
    margin.assign(static_cast<size_t>(width), ' ');
  }
  return Value(indented(to_text(input, budget), margin, given[1] != nullptr && truth(*given[1]),
                        given[2] != nullptr && truth(*given[2]), budget));
}

Value filter_items(const Value& input, const Arguments& arguments, Budget* budget) {
  bind("items", arguments, {});
  if (input.is_undefined()) return Value::sequence({}, Sequence::Kind::kGenerator);
  if (input.mapping() == nullptr) fail(fmt::format("items takes a mapping, not {}", type_name(input)));
  return pairs_of(*input.mapping(), Sequence::Kind::kGenerator, budget);
}

template <std::string (*kChanged)(std::string)>
Value filter_text(const Value& input, const Arguments& arguments, Budget* budget) {
  bind("the filter", arguments, {});
  return Value(kChanged(to_text(input, budget)));
}

template <bool kByAttribute, bool kWanted>
Value filter_select(const Value& input, const Arguments& arguments, Budget* budget) {
  return selected(input, arguments, kByAttribute, kWanted, budget);
}

template <bool kFirst>
Value filter_end(const Value& input, const Arguments& arguments, Budget* budget) {
  bind(kFirst ? "first" : "last", arguments, {});
  return end_of(input, kFirst, budget);
}

Value filter_list(const Value& input, const Arguments& arguments, Budget* budget) {
  bind("list", arguments, {});
  return Value::sequence(elements(input, budget));
}

Value filter_trim(const Value& input, const Arguments& arguments, Budget* budget) {
  return Value(stripped(to_text(input, budget), bind("trim", arguments, {"chars"})[0], Ends::kBoth));
}

std::string same(std::string text) {
  return text;
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"capitalize", filter_text<capitalised>},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"first", filter_end<true>},
    {"indent", filter_indent},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_end<false>},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_text<lowered>},
    {"map", mapped},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<true, false>},
    {"replace", filter_replace},
    {"select", filter_select<false, true>},
    {"selectattr", filter_select<true, true>},
    {"string", filter_text<same>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"upper", filter_text<uppered>},
};

bool is_list(const Value& value) {
  return value.sequence() != nullptr && value.sequence()->kind <= Sequence::Kind::kRange;
}

int64_t integer_of(const Value& value, std::string_view test) {
  if (!value.whole()) fail(fmt::format("the test {} takes an integer, not {}", test, type_name(value)));
  return *value.whole();
}

using PlainTest = bool (*)(const Value& value);
constexpr std::pair<std::string_view, PlainTest> kPlainTests[] = {
    {"boolean", [](const Value& value) { return value.boolean() != nullptr; }},
    {"defined", [](const Value& value) { return !value.is_undefined(); }},
    {"even", [](const Value& value) { return integer_of(value, "even") % 2 == 0; }},
    {"false", [](const Value& value) { return value.boolean() != nullptr && !*value.boolean(); }},
    {"float", [](const Value& value) { return value.real() != nullptr; }},
    {"integer", [](const Value& value) { return value.integer() != nullptr; }},
    {"iterable",
     [](const Value& value) {
       return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr ||
              value.mapping() != nullptr || value.loop() != nullptr;
     }},
    {"mapping", [](const Value& value) { return value.mapping() != nullptr; }},
    {"none", [](const Value& value) { return value.is_none(); }},
    {"number", [](const Value& value) { return value.number().has_value(); }},
    {"odd", [](const Value& value) { return integer_of(value, "odd") % 2 != 0; }},
    {"sequence",
     [](const Value& value) {
       return value.is_undefined() || value.text() != nullptr || is_list(value) || value.mapping() != nullptr;
     }},
    {"string", [](const Value& value) { return value.text() != nullptr; }},
    {"true", [](const Value& value) { return value.boolean() != nullptr && *value.boolean(); }},
    {"undefined", [](const Value& value) { return value.is_undefined(); }},
};

using OtherTest = bool (*)(const Value& value, const Value& other, Budget* budget);
bool test_eq(const Value& value, const Value& other, Budget* budget) {
  return equal(value, other, budget);
}
bool test_ne(const Value& value, const Value& other, Budget* budget) {
  return !equal(value, other, budget);
}
bool test_lt(const Value& value, const Value& other, Budget* budget) {
  return less(value, other, budget);
}
bool test_gt(const Value& value, const Value& other, Budget* budget) {
  return less(other, value, budget);
}
constexpr std::pair<std::string_view, OtherTest> kOtherTests[] = {
    {"==", test_eq},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"!=", test_ne},
    {"ne", test_ne},
    {"<", test_lt},
    {"lt", test_lt},
    {"lessthan", test_lt},
    {">", test_gt},
    {"gt", test_gt},
    {"greaterthan", test_gt},
    {"in",
     [](const Value& value, const Value& other, Budget* budget) { return contains(other, value, budget); }},
    {"divisibleby",
     [](const Value& value, const Value& other, Budget*) {
       const int64_t by = integer_of(other, "divisibleby");
       if (by == 0) fail("divisibleby 0");
       return by == -1 || integer_of(value, "divisibleby") % by == 0;
     }},
};

// ---- methods ----

using TextMethod = Value (*)(const std::string& self, const Arguments& arguments, Budget* budget);

template <Ends kEnds>
Value method_strip(const std::string& self, const Arguments& arguments, Budget*) {
  return Value(stripped(self, bind("strip", arguments, {"chars"})[0], kEnds));
}

template <bool kAtStart>
Value method_has_end(const std::string& self, const Arguments& arguments, Budget*) {
  constexpr std::string_view kName = kAtStart ? "startswith" : "endswith";
  return Value(has_end(self, bind(kName, arguments, {"prefix"})[0], kAtStart, kName));
}

template <std::string (*kChanged)(std::string)>
Value method_text(const std::string& self, const Arguments& arguments, Budget*) {
  bind("the method", arguments, {});
  return Value(kChanged(self));
}

Value method_split(const std::string& self, const Arguments& arguments, Budget* budget) {
  const auto given = bind("split", arguments, {"sep", "maxsplit"});
  return split(self, given[0], count_of(given[1], "split"), budget);
}

Value method_replace(const std::string& self, const Arguments& arguments, Budget* budget) {
  const auto given = bind("replace", arguments, {"old", "new", "count"});
  return Value(replaced(self, needed_text(given[0], "replace"), needed_text(given[1], "replace"),
                        count_of(given[2], "replace"), budget));
}

Value method_join(const std::string& self, const Arguments& arguments, Budget* budget) {
  const auto given = bind("join", arguments, {"iterable"});
  if (given[0] == nullptr) fail("join lacks an argument");
  return Value(joined(elements(*given[0], budget), self, true, budget));
}

constexpr std::pair<std::string_view, TextMethod> kTextMethods[] = {
    {"capitalize", method_text<capitalised>},
    {"endswith", method_has_end<false>},
    {"join", method_join},
    {"lower", method_text<lowered>},
    {"lstrip", method_strip<Ends::kStart>},
    {"replace", method_replace},
    {"rstrip", method_strip<Ends::kEnd>},
    {"split", method_split},
    {"startswith", method_has_end<true>},
    {"strip", method_strip<Ends::kBoth>},
    {"upper", method_text<uppered>},
};

using MappingMethod = Value (*)(const Mapping& self, const Arguments& arguments, Budget* budget);
constexpr std::pair<std::string_view, MappingMethod> kMappingMethods[] = {
    {"get",
     [](const Mapping& self, const Arguments& arguments, Budget* budget) {
       const auto given = bind("get", arguments, {"key", "default"});
       if (given[0] == nullptr) fail("get lacks an argument");
       const Value* found = find(self, *given[0], budget);
       return found != nullptr ? *found : given[1] != nullptr ? *given[1] : Value(None{});
     }},
    {"items",
     [](const Mapping& self, const Arguments& arguments, Budget* budget) {
       bind("items", arguments, {});
       return pairs_of(self, Sequence::Kind::kView, budget);
     }},
    {"keys",
     [](const Mapping& self, const Arguments& arguments, Budget* budget) {
       bind("keys", arguments, {});
       Values keys;
       for (const auto& entry : self.entries) keys.push_back(entry.first);
       budget->step(std::ssize(keys));
       return Value::sequence(std::move(keys), Sequence::Kind::kView);
     }},
    {"values",
     [](const Mapping& self, const Arguments& arguments, Budget* budget) {
       bind("values", arguments, {});
       Values values;
       for (const auto& entry : self.entries) values.push_back(entry.second);
       budget->step(std::ssize(values));
       return Value::sequence(std::move(values), Sequence::Kind::kView);
     }},
};

template <class Rows>
auto row_of(const Rows& rows, const std::string& name) -> decltype(rows[0].second) {
  for (const auto& [known, function] : rows)
    if (known == name) return function;
  return nullptr;
}

}  // namespace

std::vector<const Value*> bind(std::string_view function, const Arguments& given,
                               std::initializer_list<std::string_view> parameters) {
  std::vector<const Value*> values(parameters.size(), nullptr);
  if (given.in_order.size() > parameters.size())
    fail_unsupported(fmt::format("{} with {} arguments is not supported, at most {}", function,
                                 given.in_order.size(), parameters.size()));
  for (size_t i = 0; i < given.in_order.size(); ++i) values[i] = &given.in_order[i];
  for (const auto& [name, value] : given.named) {
    const auto* found = std::ranges::find(parameters, name);
    if (name.empty() || found == parameters.end())
      fail_unsupported(fmt::format("{} with an argument {} is not supported", function, name));
    const Value*& place = values[static_cast<size_t>(found - parameters.begin())];
    if (place != nullptr) fail(fmt::format("{} has two arguments {}", function, name));
    place = &value;
  }
  return values;
}

Value apply_filter(const std::string& name, const Value& input, const Arguments& arguments, Budget* budget) {
  budget->step();
  const Filter filter = row_of(kFilters, name);
  if (filter == nullptr)
    fail_unsupported(
        fmt::format("the filter {} is not supported; supported are {}", name, names_of(kFilters)));
  return filter(input, arguments, budget);
}

bool apply_test(const std::string& name, const Value& tested, const Arguments& arguments, Budget* budget) {
  budget->step();
  if (const PlainTest test = row_of(kPlainTests, name)) {
    bind(name, arguments, {});
    return test(tested);
  }
  if (const OtherTest test = row_of(kOtherTests, name)) {
    const auto given = bind(name, arguments, {"other"});
    if (given[0] == nullptr) fail(fmt::format("the test {} lacks its argument", name));
    return test(tested, *given[0], budget);
  }
  fail_unsupported(fmt::format("the test {} is not supported; supported are {}, {}", name,
                               names_of(kPlainTests), names_of(kOtherTests)));
}

Value call_method(const Value& self, const std::string& name, const Arguments& arguments, Budget* budget) {
  budget->step();
  if (const std::string* text = self.text()) {
    budget->handle(text->size());
    if (const TextMethod method = row_of(kTextMethods, name)) return method(*text, arguments, budget);
    fail_unsupported(fmt::format("the method {} of a text is not supported; supported are {}", name,
                                 names_of(kTextMethods)));
  }
  if (const Mapping* mapping = self.mapping()) {
    if (const MappingMethod method = row_of(kMappingMethods, name))
      return method(*mapping, arguments, budget);
    fail_unsupported(fmt::format("the method {} of a mapping is not supported; supported are {}", name,
                                 names_of(kMappingMethods)));
  }
  fail_unsupported(fmt::format("the method {} of {} is not supported", name, type_name(self)));
}

bool contains(const Value& container, const Value& value, Budget* budget) {
  if (const std::string* text = container.text()) {
    budget->handle(text->size());
    if (const Undefined* undefined = value.undefined()) fail(undefined->what);
    if (value.text() == nullptr) fail(fmt::format("a text contains no {}", type_name(value)));
    return text->find(*value.text()) != std::string::npos;
  }
  if (const Mapping* mapping = container.mapping()) return find(*mapping, value, budget) != nullptr;
  const Sequence* sequence = container.sequence();
  if (sequence != nullptr && sequence->kind == Sequence::Kind::kGenerator)
    fail_unsupported("\"in\" of a generator is not supported; make a list of it");
  const Values all = elements(container, budget);
  return std::ranges::any_of(all, [&](const Value& one) { return equal(one, value, budget); });
}

}  // namespace allot::model::jinja
