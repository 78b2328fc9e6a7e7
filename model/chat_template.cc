#include "model/chat_template.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

jinja::Value checked_text(const std::string& text, std::string_view what, size_t message) {
  if (const auto offset = find_invalid_utf8(text))
    throw InvalidArgument(
        fmt::format("the {} of message {} is not UTF-8: byte {} of {}", what, message, *offset, text.size()));
  return jinja::Value(text);
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const SpecialTokens& special_tokens)
    : template_(source), special_tokens_(special_tokens) {}

std::string ChatTemplate::prompt(std::span<const ChatMessage> messages, const std::tm& now) const {
  using jinja::None;
  using jinja::Value;
  jinja::Values values;
  for (size_t i = 0; i < messages.size(); ++i)
    values.push_back(Value::mapping({{Value("role"), checked_text(messages[i].role, "role", i)},
                                     {Value("content"), checked_text(messages[i].content, "content", i)}}));
  jinja::Template::Variables variables;
  for (const auto& [name, text] : special_tokens_) variables.emplace_back(name, Value(text));
  variables.emplace_back("messages", Value::sequence(std::move(values)));
  variables.emplace_back("tools", None{});
  variables.emplace_back("documents", None{});
  variables.emplace_back("add_generation_prompt", Value(true));
  return template_.render(std::move(variables), now);
}

std::tm date_of_runs() {
  std::tm date{};
  date.tm_year = 2024 - 1900;
  date.tm_mon = 6;
  date.tm_mday = 26;
  date.tm_wday = 5;
  date.tm_yday = 207;
  return date;
}

PromptEncoder::PromptEncoder(const Tokenizer& tokenizer, PromptForm form, std::string system,
                             std::optional<PromptRoom> room)
    : system_(std::move(system)), room_(room) {
  if (form == PromptForm::kText) return;
  if (!tokenizer.chat_template())
    throw Unsupported(
        "the model has no chat template (chat_template.jinja, or chat_template of tokenizer_config.json), which "
        "prompt style chat needs; choose another, such as plain");
  chat_.emplace(*tokenizer.chat_template(), tokenizer.special_tokens());
}

std::vector<int32_t> PromptEncoder::encode(const Tokenizer& tokenizer, const std::string& text,
                                           bool* cut) const {
  if (cut != nullptr) *cut = false;
  std::vector<int32_t> prompt = encode_whole(tokenizer, text);
  if (!room_) return prompt;
  const std::vector<int32_t> ids = chat_ ? tokenizer.encode(text) : prompt;
  int64_t kept = std::ssize(ids);
  while (true) {
    const int64_t excess = std::max(kept - room_->text_tokens, std::ssize(prompt) - room_->prompt_tokens);
    if (excess <= 0 || kept - excess < 1) return prompt;
    kept -= excess;
    std::vector<int32_t> ends(ids.begin(), ids.begin() + kept / 2);
    ends.insert(ends.end(), ids.end() - (kept - kept / 2), ids.end());
    prompt = encode_whole(tokenizer, tokenizer.decode(ends));
    if (cut != nullptr) *cut = true;
  }
}

std::vector<int32_t> PromptEncoder::encode_whole(const Tokenizer& tokenizer, const std::string& text) const {
  if (!chat_) return tokenizer.encode(text);
  std::vector<ChatMessage> messages;
  if (!system_.empty()) messages.push_back({.role = "system", .content = system_});
  messages.push_back({.role = "user", .content = text});
  return tokenizer.encode(chat_->prompt(messages, date_of_runs()), /*add_special_tokens=*/false);
}

}  // namespace allot::model
