#include "app/serve/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/json.h"
#include "evaluation/generation.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

// OpenAI takes 4; tasks of lm-evaluation-harness have 5 and an end token.
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 256;
constexpr double kMaxApiTemperature = 2;
constexpr size_t kMaxDepth = 32;

[[noreturn]] void refuse(const std::string& message, std::string_view field, std::string_view code = "") {
  throw ApiError(400, "invalid_request_error", message, std::string(field), std::string(code));
}

[[noreturn]] void refuse_unsupported(std::string_view field, std::string_view why) {
  refuse(fmt::format("'{}' is not supported here: {}", field, why), field, "unsupported_parameter");
}

// What a value is, for messages: never the value itself, which a client chose.
std::string kind_of(const Json& value) {
  return value.is_number_float() ? "a number with a fraction" : std::string(value.type_name());
}

[[noreturn]] void refuse_kind(std::string_view field, const Json& value, std::string_view expected) {
  refuse(fmt::format("'{}' is {}, expected {}", field, kind_of(value), expected), field);
}

int64_t integer_of(std::string_view field, const Json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) refuse_kind(field, value, fmt::format("an integer {} to {}", min, max));
  // Numbers beyond 2^63 would wrap.
  const bool in_range = value.is_number_unsigned()
                            ? value.get<uint64_t>() <= static_cast<uint64_t>(max) &&
                                  static_cast<int64_t>(value.get<uint64_t>()) >= min
                            : value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  if (!in_range) refuse(fmt::format("'{}' is {}, expected {} to {}", field, value.dump(), min, max), field);
  return value.get<int64_t>();
}

double real_of(std::string_view field, const Json& value, double min, double max) {
  if (!value.is_number()) refuse_kind(field, value, fmt::format("a number {} to {}", min, max));
  const double number = value.get<double>();
  if (!(number >= min && number <= max))
    refuse(fmt::format("'{}' is {}, expected {} to {}", field, number, min, max), field);
  return number;
}

bool flag_of(std::string_view field, const Json& value) {
  if (!value.is_boolean()) refuse_kind(field, value, "true or false");
  return value.get<bool>();
}

std::string text_of(std::string_view field, const Json& value) {
  if (!value.is_string()) refuse_kind(field, value, "a string");
  return value.get<std::string>();
}

std::vector<std::string> stops_of(const Json& value) {
  std::vector<std::string> stops;
  const auto add = [&](const Json& entry) {
    std::string stop = text_of("stop", entry);
    if (stop.empty() || stop.size() > kMaxStopBytes)
      refuse(fmt::format("'stop' has a string of {} bytes, expected 1 to {}", stop.size(), kMaxStopBytes),
             "stop");
    stops.push_back(std::move(stop));
  };
  if (!value.is_array()) {
    add(value);
    return stops;
  }
  if (value.size() > kMaxStops)
    refuse(fmt::format("'stop' has {} strings, expected at most {}", value.size(), kMaxStops), "stop");
  for (const Json& entry : value) add(entry);
  return stops;
}

TokenIds ids_of(const Json& list) {
  TokenIds ids;
  ids.reserve(list.size());
  for (const Json& entry : list)
    ids.push_back(static_cast<int32_t>(integer_of("prompt", entry, 0, std::numeric_limits<int32_t>::max())));
  return ids;
}

std::vector<PromptInput> prompts_of(const Json& value) {
  constexpr std::string_view kForms = "a string, token ids, or a list of one of them";
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) refuse_kind("prompt", value, kForms);
  if (value.empty()) refuse(fmt::format("'prompt' is an empty list, expected {}", kForms), "prompt");
  if (value[0].is_number()) return {ids_of(value)};
  std::vector<PromptInput> prompts;
  for (const Json& entry : value) {
    if (entry.is_string() && value[0].is_string()) {
      prompts.emplace_back(entry.get<std::string>());
    } else if (entry.is_array() && value[0].is_array()) {
      prompts.emplace_back(ids_of(entry));
    } else {
      refuse_kind("prompt", entry, kForms);
    }
  }
  return prompts;
}

std::vector<uint32_t> questions_of(const Json& value) {
  const auto number = [](const Json& entry) {
    return static_cast<uint32_t>(integer_of("question", entry, 0, std::numeric_limits<uint32_t>::max()));
  };
  if (!value.is_array()) return {number(value)};
  std::vector<uint32_t> questions;
  for (const Json& entry : value) questions.push_back(number(entry));
  return questions;
}

std::string content_of(const std::string& place, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse_kind(place, value, "a string or a list of parts of type text");
  std::string text;
  for (const Json& part : value) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string() || part.size() != 2) {
      refuse(
          fmt::format("'{}' has a part that is not {{\"type\": \"text\", \"text\": …}}; only text is served",
                      place),
          place);
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

std::vector<model::ChatMessage> messages_of(const Json& value) {
  if (!value.is_array()) refuse_kind("messages", value, "a list of messages");
  if (value.empty()) refuse("'messages' is empty, expected at least one message", "messages");
  std::vector<model::ChatMessage> messages;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    const Json& message = value[i];
    if (!message.is_object()) refuse_kind(place, message, "an object with role and content");
    for (const auto& [field, ignored] : message.items()) {
      if (field != "role" && field != "content")
        refuse_unsupported(place + "." + field, "a message has role and content");
    }
    if (!message.contains("role") || !message.contains("content"))
      refuse(fmt::format("'{}' lacks role or content", place), place);
    std::string role = text_of(place + ".role", message["role"]);
    if (role == "developer") role = "system";  // the newer name
    if (role.empty()) refuse(fmt::format("'{}.role' is empty", place), place + ".role");
    messages.push_back({std::move(role), content_of(place + ".content", message["content"])});
  }
  return messages;
}

using Reader = std::function<void(const std::string& field, const Json& value)>;
using Readers = std::map<std::string, Reader, std::less<>>;

// A field that may have one of these values alone, those that change nothing.
Reader only(std::vector<Json> values, const std::string& why) {
  return [=](const std::string& field, const Json& value) {
    if (std::ranges::find(values, value) == values.end()) refuse_unsupported(field, why);
  };
}

void read_stream_options(const Json& value, ApiRequest* request) {
  if (!value.is_object()) refuse_kind("stream_options", value, "an object");
  for (const auto& [field, entry] : value.items()) {
    const std::string place = "stream_options." + field;
    if (field != "include_usage") refuse(fmt::format("'{}' is not known", place), place);
    request->include_usage = flag_of(place, entry);
  }
}

Readers common_readers(const ApiLimits& limits, ApiRequest* request) {
  const auto none = "logits are not changed by it";
  Readers readers;
  readers["model"] = [&limits](const std::string& field, const Json& value) {
    if (text_of(field, value) != limits.model) {
      throw ApiError(404, "invalid_request_error",
                     fmt::format("'model' is not served here; '{}' is", limits.model), field,
                     "model_not_found");
    }
  };
  readers["temperature"] = [request](const std::string& field, const Json& value) {
    request->sampling.temperature = real_of(field, value, 0, kMaxApiTemperature);
  };
  // 0 means the likeliest token alone, as the smallest part does.
  readers["top_p"] = [request](const std::string& field, const Json& value) {
    request->sampling.top_p = std::max(real_of(field, value, 0, 1), evaluation::kMinTopP);
  };
  readers["repetition_penalty"] = [request](const std::string& field, const Json& value) {
    request->sampling.repetition_penalty =
        real_of(field, value, evaluation::kMinRepetitionPenalty, evaluation::kMaxRepetitionPenalty);
  };
  readers["max_tokens"] = [request](const std::string& field, const Json& value) {
    request->max_tokens = static_cast<int32_t>(integer_of(field, value, 1, evaluation::kMaxNewTokens));
  };
  readers["n"] = [request, &limits](const std::string& field, const Json& value) {
    request->n = static_cast<int32_t>(integer_of(field, value, 1, limits.max_choices));
  };
  readers["seed"] = [request](const std::string& field, const Json& value) {
    request->seed = static_cast<uint32_t>(integer_of(field, value, 0, std::numeric_limits<uint32_t>::max()));
  };
  readers["question"] = [request](const std::string&, const Json& value) {
    request->questions = questions_of(value);
  };
  readers["stop"] = [request](const std::string&, const Json& value) { request->stop = stops_of(value); };
  readers["stream"] = [request](const std::string& field, const Json& value) {
    request->stream = flag_of(field, value);
  };
  readers["stream_options"] = [request](const std::string&, const Json& value) {
    read_stream_options(value, request);
  };
  readers["ignore_eos"] = [request](const std::string& field, const Json& value) {
    request->ignore_eos = flag_of(field, value);
  };
  readers["user"] = [](const std::string& field, const Json& value) { text_of(field, value); };
  readers["presence_penalty"] = readers["frequency_penalty"] = only({0}, none);
  readers["logit_bias"] = only({Json::object()}, none);
  return readers;
}

// The depth is bounded before anything walks the value.
Json parse_json(std::string_view body) {
  bool too_deep = false;
  const auto watch = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > static_cast<int>(kMaxDepth);
    return !too_deep;
  };
  Json json = Json::parse(body, watch, /*allow_exceptions=*/false);
  if (too_deep) refuse(fmt::format("the body has more than {} levels", kMaxDepth), "");
  if (!json.is_object())
    refuse("the body is no JSON object in UTF-8; expected one, with content type application/json", "");
  return json;
}

ApiRequest read(std::string_view body, const ApiLimits& limits, const std::string& input,
                const std::function<void(Readers*, ApiRequest*)>& add) {
  const Json json = parse_json(body);
  ApiRequest request;
  request.sampling = limits.sampling;
  Readers readers = common_readers(limits, &request);
  add(&readers, &request);
  for (const std::string& field : {std::string("model"), input})
    if (!json.contains(field) || json[field].is_null()) refuse(fmt::format("'{}' is missing", field), field);
  for (const auto& [field, value] : json.items()) {
    const auto reader = readers.find(field);
    if (reader == readers.end()) refuse("the body has a field that is not known", field.substr(0, 64));
    if (!value.is_null()) reader->second(field, value);
  }
  if (request.include_usage && !request.stream)
    refuse("'stream_options' belongs to a request with 'stream'", "stream_options");
  const size_t inputs = std::max<size_t>(request.prompts.size(), 1);
  if (inputs * static_cast<size_t>(request.n) > static_cast<size_t>(limits.max_choices)) {
    refuse(fmt::format("{} prompts with n {} ask for more than {} replies", inputs, request.n,
                       limits.max_choices),
           "n");
  }
  if (const auto named = json.find("question"); named != json.end() && !named->is_null()) {
    if (request.questions.size() != inputs)
      refuse(fmt::format("'question' names {} questions for {} prompts, expected one for each",
                         request.questions.size(), inputs),
             "question");
    if (request.n > 1)
      refuse(fmt::format("'n' is {} with 'question', whose replies all have the same draws; expected 1",
                         request.n),
             "n");
  }
  return request;
}

}  // namespace

std::string ApiError::json() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return Json({{"error",
                {{"message", what()}, {"type", type}, {"param", or_null(param)}, {"code", or_null(code)}}}})
      .dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

ApiRequest parse_completion(std::string_view body, const ApiLimits& limits) {
  return read(body, limits, "prompt", [](Readers* readers, ApiRequest* request) {
    Readers& known = *readers;
    known["prompt"] = [request](const std::string&, const Json& value) {
      request->prompts = prompts_of(value);
    };
    known["logprobs"] = only({}, "probabilities of tokens are not returned");
    known["echo"] = only({false}, "the prompt is not returned");
    known["suffix"] = only({}, "texts go on at their end");
    known["best_of"] = only({1}, "every reply is returned; use n");
  });
}

ApiRequest parse_chat(std::string_view body, const ApiLimits& limits) {
  return read(body, limits, "messages", [](Readers* readers, ApiRequest* request) {
    Readers& known = *readers;
    known["messages"] = [request](const std::string&, const Json& value) {
      request->messages = messages_of(value);
    };
    known["max_completion_tokens"] = known["max_tokens"];  // the newer name
    known["logprobs"] = only({false}, "probabilities of tokens are not returned");
    known["top_logprobs"] = only({}, "probabilities of tokens are not returned");
    known["response_format"] = only({Json({{"type", "text"}})}, "replies are text");
    known["tools"] = known["functions"] = only({Json::array()}, "the model calls nothing");
    known["tool_choice"] = only({"none"}, "the model calls nothing");
    known["store"] = only({false}, "nothing is kept");
  });
}

}  // namespace allot::app
