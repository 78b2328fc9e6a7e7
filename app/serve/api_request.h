// Requests of the OpenAI HTTP API (completions and chat completions) as checked values, and its errors.
// Nothing of a request is passed over: a field that is known and not supported, and one that is not known, is
// an error that names it.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/chat_template.h"
#include "model/sampling.h"

namespace allot::app {

// An error as the API has it: HTTP status, message, and the fields type, param and code of its JSON form;
// param and code may be empty.
struct ApiError : std::runtime_error {
  ApiError(int http_status, std::string kind, const std::string& message, std::string parameter = "",
           std::string error_code = "")
      : std::runtime_error(message),
        status(http_status),
        type(std::move(kind)),
        param(std::move(parameter)),
        code(std::move(error_code)) {}

  // {"error": {"message", "type", "param", "code"}}.
  std::string json() const;

  int status;
  std::string type;
  std::string param;
  std::string code;
};

// What the fields of a request may be, and what applies where it lacks them.
struct ApiLimits {
  std::string model;               // the name that requests have to give
  model::SamplingParams sampling;  // defaults
  int32_t max_new_tokens = 256;    // default
  int32_t max_choices = 16;        // prompts times n
};

using TokenIds = std::vector<int32_t>;
using PromptInput = std::variant<std::string, TokenIds>;

struct ApiRequest {
  std::vector<PromptInput> prompts;          // of /v1/completions
  std::vector<model::ChatMessage> messages;  // of /v1/chat/completions
  model::SamplingParams sampling;
  int32_t n = 1;
  std::optional<int32_t> max_tokens;  // nothing: the default, or fewer where the model has no room
  std::optional<uint32_t> seed;
  // Of each prompt its number in a file of questions, a coordinate of its draws; empty where not named.
  std::vector<uint32_t> questions;
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;  // at the end of a stream
  bool ignore_eos = false;
};

// Throw ApiError of status 400, or 404 for another model.
ApiRequest parse_completion(std::string_view body, const ApiLimits& limits);
ApiRequest parse_chat(std::string_view body, const ApiLimits& limits);

}  // namespace allot::app
