// Chat templates: any text as a template, rendered for two conversations under small limits.
#include "base/error.h"
#include "model/jinja/template.h"
#include "model/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace allot::fuzz {
namespace {

using model::jinja::None;
using model::jinja::Value;
using model::jinja::Values;

Value message(const char* role, const char* content) {
  return Value::mapping({{Value("role"), Value(role)}, {Value("content"), Value(content)}});
}

Value talk() {
  Value arguments = Value::mapping({{Value("a"), Value(1.5)}, {Value("b"), Value(int64_t{-2})}});
  Value function =
      Value::mapping({{Value("name"), Value("add")}, {Value("arguments"), std::move(arguments)}});
  Value call = Value::mapping({{Value("id"), Value("abcdefghi")}, {Value("function"), std::move(function)}});
  Value calling = Value::mapping({{Value("role"), Value("assistant")},
                                  {Value("content"), None{}},
                                  {Value("tool_calls"), Value::sequence({std::move(call)})}});
  return Value::sequence({message("system", " terse\n"), message("user", "2 + 2? \"ä\xF0\x9F\x98\x80\""),
                          std::move(calling), message("tool", "4"),
                          message("assistant", "<think>\n\n</think> 4"), message("user", "")});
}

std::string render(const model::jinja::Template& chat, bool tools) {
  Value tool = Value::mapping({{Value("type"), Value("function")}, {Value("strict"), Value(true)}});
  try {
    return chat.render({{"messages", talk()},
                        {"tools", tools ? Value::sequence({std::move(tool)}) : Value(None{})},
                        {"documents", None{}},
                        {"add_generation_prompt", Value(tools)},
                        {"bos_token", Value("<s>")},
                        {"eos_token", Value("</s>")}},
                       std::tm{}, {.steps = 20'000, .bytes = 1 << 18});
  } catch (const Error& error) {
    require(error.what()[0] != '\0', "a refusal says why");
    return "";
  }
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace allot;
  try {
    const model::jinja::Template chat({reinterpret_cast<const char*>(data), size});
    for (const bool tools : {false, true}) {
      const std::string text = fuzz::render(chat, tools);
      fuzz::require(!model::find_invalid_utf8(text), "what is rendered is UTF-8");
      fuzz::require(text == fuzz::render(chat, tools), "a rendering is a function of its arguments");
      fuzz::require(text.size() <= 1 << 18, "a rendering keeps its limits");
    }
  } catch (const Error&) {
    // Refused with a typed error.
  }
  return 0;
}
