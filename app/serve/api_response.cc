#include "app/serve/api_response.h"

#include <fmt/format.h>

#include "base/json.h"

namespace allot::app {
namespace {

using Ordered = nlohmann::ordered_json;

// A reply may end within a character.
std::string dumped(const Ordered& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Ordered::error_handler_t::replace);
}

Ordered usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Ordered head_json(const AnswerHead& head, bool chunk) {
  const char* object = head.kind == ApiKind::kCompletion ? "text_completion"
                       : chunk                           ? "chat.completion.chunk"
                                                         : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// A chunk with one choice; `delta` is what a chat's has.
std::string chunk(const AnswerHead& head, int32_t choice, const std::string& text, Ordered delta,
                  const Ordered& finish) {
  Ordered json = head_json(head, /*chunk=*/true);
  Ordered entry = {{"index", choice}};
  if (head.kind == ApiKind::kCompletion)
    entry["text"] = text;
  else
    entry["delta"] = std::move(delta);
  entry["logprobs"] = nullptr;
  entry["finish_reason"] = finish;
  json["choices"] = Ordered::array({std::move(entry)});
  return event(dumped(json));
}

}  // namespace

std::string_view finish_reason(Finish finish) {
  return finish == Finish::kLength ? "length" : "stop";
}

std::string answer_json(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  Ordered json = head_json(head, /*chunk=*/false);
  json["choices"] = Ordered::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    Ordered entry = {{"index", i}};
    if (head.kind == ApiKind::kCompletion)
      entry["text"] = choices[i].text;
    else
      entry["message"] = {{"role", "assistant"}, {"content", choices[i].text}};
    entry["logprobs"] = nullptr;
    entry["finish_reason"] = finish_reason(choices[i].finish);
    json["choices"].push_back(std::move(entry));
  }
  json["usage"] = usage_json(usage);
  return dumped(json);
}

std::string opening_event(const AnswerHead& head, int32_t choice) {
  if (head.kind == ApiKind::kCompletion) return "";
  return chunk(head, choice, "", {{"role", "assistant"}, {"content", ""}}, nullptr);
}

std::string text_event(const AnswerHead& head, int32_t choice, const std::string& text) {
  return chunk(head, choice, text, {{"content", text}}, nullptr);
}

std::string closing_event(const AnswerHead& head, int32_t choice, Finish finish) {
  return chunk(head, choice, "", Ordered::object(), finish_reason(finish));
}

std::string usage_event(const AnswerHead& head, const Usage& usage) {
  Ordered json = head_json(head, /*chunk=*/true);
  json["choices"] = Ordered::array();
  json["usage"] = usage_json(usage);
  return event(dumped(json));
}

std::string event(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace allot::app
