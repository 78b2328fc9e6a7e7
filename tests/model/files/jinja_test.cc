// Chat templates against what transformers and Jinja make of them (tests/data/make_chat_golden.py), and what
// is refused.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "model/jinja/template.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::model::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::filesystem::path folder() {
  return std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/chat";
}

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return Value(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(json.get<std::string>());
    case Json::value_t::array: {
      Values values;
      for (const Json& element : json) values.push_back(value_of(element));
      return Value::sequence(std::move(values));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, value] : json.items()) entries.emplace_back(Value(key), value_of(value));
      return Value::mapping(std::move(entries));
    }
    default:
      return None{};
  }
}

Template::Variables variables_of(const Json& object) {
  Template::Variables variables;
  for (const auto& [name, value] : object.items()) variables.emplace_back(name, value_of(value));
  return variables;
}

// 26 July 2024, a Friday.
std::tm moment() {
  std::tm time{};
  time.tm_year = 124;
  time.tm_mon = 6;
  time.tm_mday = 26;
  time.tm_wday = 5;
  time.tm_yday = 207;
  return time;
}

// Nothing where the template is refused as no Jinja, or refuses.
std::optional<std::string> rendered(const Template& chat, const Json& variables) {
  try {
    return chat.render(variables_of(variables), moment());
  } catch (const InvalidArgument&) {
    return std::nullopt;
  }
}

std::optional<std::string> rendered(const std::string& source, const Json& variables) {
  try {
    return rendered(Template(source), variables);
  } catch (const CorruptFile&) {
    return std::nullopt;
  }
}

std::optional<std::string> text_of(const Json& expected) {
  return expected.is_null() ? std::nullopt : std::optional(expected.get<std::string>());
}

TEST(JinjaTemplate, RendersTheTemplatesOfModelsAsTransformersDoes) {
  const Json document = Json::parse(read_file(folder() / "expected.json"));
  ASSERT_EQ(document.at("templates").size(), 14);
  for (const auto& [name, expected] : document.at("templates").items()) {
    const Template chat(read_file(folder() / (name + ".jinja")));
    ASSERT_EQ(expected.at("texts").size(), document.at("conversations").size());
    for (const auto& [title, texts] : expected.at("texts").items()) {
      Json variables = expected.at("tokens");
      const Json& conversation = document.at("conversations").at(title);
      variables["messages"] = conversation.at("messages");
      variables["tools"] = conversation.value("tools", Json());
      variables["documents"] = nullptr;
      for (const bool asks : {true, false}) {
        variables["add_generation_prompt"] = asks;
        EXPECT_EQ(rendered(chat, variables), text_of(texts.at(asks ? 0 : 1)))
            << name << ", " << title << ", " << asks;
      }
    }
  }
}

TEST(JinjaTemplate, MeansWhatJinjaMeans) {
  const Json document = Json::parse(read_file(folder() / "language.json"));
  ASSERT_GT(document.at("cases").size(), 100);
  for (const Json& one : document.at("cases"))
    EXPECT_EQ(rendered(one.at(0), document.at("variables")), text_of(one.at(1))) << one.at(0);
}

std::string unsupported(const std::string& source) {
  return message_of<Unsupported>([&] {
    (void)Template(source).render(variables_of({{"list", {3, 1}}, {"text", "ab"}, {"map", {{"a", 1}}}}),
                                  moment(), {.steps = 20'000, .bytes = 1 << 20});
  });
}

TEST(JinjaTemplate, RefusesByNameAndPlaceWhatItDoesNotKnow) {
  EXPECT_THAT(unsupported("a\n {{ list|sort }}"), Names("sort", 2, 9, "selectattr"));
  EXPECT_THAT(unsupported("{{ 1 is callable }}"), Names("callable", 1, 6, "mapping"));
  EXPECT_THAT(unsupported("{{ text.title() }}"), Names("title", 1, "rstrip"));
  EXPECT_THAT(unsupported("{{ map.pop('a') }}"), Names("pop", "items"));
  EXPECT_THAT(unsupported("{{ list.append(1) }}"), Names("append"));
  EXPECT_THAT(unsupported("\n\n{% macro x() %}{% endmacro %}"), Names("macro", 3, 4, "generation"));
  EXPECT_THAT(unsupported("{% raw %}{% endraw %}"), Names("raw"));
  EXPECT_THAT(unsupported("{{ cycler(1) }}"), Names("cycler"));
  EXPECT_THAT(unsupported("{{ 2 ** 3 }}"), Names("**"));
  EXPECT_THAT(unsupported("{{ 'ä'|upper }}"), Names("upper", "ASCII"));
  EXPECT_THAT(unsupported("{{ '%s' % 1 }}"), Names("%"));
  EXPECT_THAT(unsupported("{{ text|tojson(default=1) }}"), Names("tojson", "default"));
  EXPECT_THAT(unsupported("{% for a in list recursive %}{% endfor %}"), Names("recursive"));
  EXPECT_THAT(unsupported("{{ strftime_now('%s') }}"), Names("%s"));
  EXPECT_THAT(unsupported("{{ 9223372036854775807 + 1 }}"), Names(64));
  EXPECT_THAT(unsupported("{{ 99999999999999999999 }}"), Names("99999999999999999999"));
  EXPECT_THAT(unsupported("{{ list|map('trim') }}"), Names("generator"));
}

TEST(JinjaTemplate, SaysWhyATemplateRefusesAndWhereItFails) {
  const auto message = [](const std::string& source) {
    return message_of<InvalidArgument>([&] { (void)Template(source).render({}, moment()); });
  };
  EXPECT_THAT(message("{{ raise_exception('roles must alternate') }}"),
              testing::HasSubstr("roles must alternate"));
  EXPECT_THAT(message("a\n  {{ 'x' + y.z }}"), Names(2, 13, "'y' is undefined"));
  EXPECT_THAT(message_of<CorruptFile>([] { Template("{% if x %}\n{{ 1 +\n}}"); }), Names(3, 1));
  EXPECT_THAT(message_of<CorruptFile>([] { Template("a\xff"); }), Names(1, "UTF-8"));
}

// Each would take time or memory without end, or a stack without end, and is refused at once.
TEST(JinjaTemplate, IsBoundedInTimeMemoryAndDepth) {
  const auto repeated = [](std::string_view text, size_t times) {
    std::string all;
    for (size_t i = 0; i < times; ++i) all += text;
    return all;
  };
  const std::string loops = repeated("{% for a in range(1000) %}", 9) + "x" + repeated("{% endfor %}", 9);
  EXPECT_THAT(unsupported(loops), Names("steps"));
  EXPECT_THAT(unsupported("{{ range(1000000000000)|list }}"), Names("steps"));
  EXPECT_THAT(unsupported("{{ 'abcdefgh' * 1000000000000 }}"), Names("text"));
  EXPECT_THAT(
      unsupported(
          "{% set n = namespace(x='abcdefgh') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}"),
      Names("text"));
  EXPECT_THAT(
      unsupported("{% set n = namespace(x=[]) %}{% for a in range(99) %}{% set n.x = [n.x] %}{% endfor %}"),
      Names("deep"));
  EXPECT_THAT(unsupported("{% set n = namespace() %}{% set n.x = n %}"), Names("namespace"));
  EXPECT_THAT(unsupported("{% set n = namespace() %}{% set n = [n] %}"), Names("namespace"));
  EXPECT_THAT(unsupported("{{ " + repeated("(", 1000) + "1" + repeated(")", 1000) + " }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ " + repeated("not ", 1000) + "1 }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ " + repeated("-", 1000) + "1 }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ 1" + repeated("+1", 1000) + " }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ x" + repeated(".x", 1000) + " }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ x" + repeated("|trim", 1000) + " }}"), Names("deep"));
  EXPECT_THAT(unsupported("{{ x" + repeated(" if x", 1000) + " }}"), Names("deep"));
  EXPECT_THAT(unsupported(repeated("{% if true %}", 1000)), Names("deep"));
  EXPECT_THAT(unsupported("{% if a %}" + repeated("{% elif a %}", 1000)), Names("deep"));
  EXPECT_THAT(unsupported("{{ 'a'|map(" + repeated("'map',", 1000) + ")|list }}"), Names("map"));
  EXPECT_THAT(unsupported(std::string((1 << 20) + 1, 'a')), Names(1 << 20, (1 << 20) + 1));
}

}  // namespace
}  // namespace allot::model::jinja
