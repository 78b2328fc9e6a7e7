// Answers of the OpenAI HTTP API as JSON texts: whole replies, the chunks of a stream as server-sent events,
// and the list of models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "episode/finish.h"

namespace allot::app {

// Which of the two interfaces a request came by.
enum class ApiKind { kCompletion, kChat };

// What all answers to one request have in common.
struct AnswerHead {
  ApiKind kind = ApiKind::kCompletion;
  std::string id;
  int64_t created = 0;  // seconds since the Unix epoch
  std::string model;
};

struct Choice {
  std::string text;
  Finish finish = Finish::kLength;
};

struct Usage {
  int64_t prompt_tokens = 0;  // each prompt counted once
  int64_t completion_tokens = 0;
};

// "stop" or "length".
std::string_view finish_reason(Finish finish);

std::string answer_json(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage);

// Events of a stream; each is "data: {…}\n\n". A chat's choice opens with the role of its message.
std::string opening_event(const AnswerHead& head, int32_t choice);
std::string text_event(const AnswerHead& head, int32_t choice, const std::string& text);
std::string closing_event(const AnswerHead& head, int32_t choice, Finish finish);
std::string usage_event(const AnswerHead& head, const Usage& usage);
// An event of any JSON text, and the one that ends a stream.
std::string event(std::string_view json);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

}  // namespace allot::app
