#include "app/serve/chat_markup.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace allot::app {
namespace {

constexpr std::pair<std::string_view, ChatMarkup> kMarks[] = {
    {"<|start_header_id|>", ChatMarkup::kLlama3},
    {"<|im_start|>", ChatMarkup::kChatMl},
    {"<｜User｜>", ChatMarkup::kDeepseek},
};

std::string llama3(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text +=
        fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", message.role, message.content);
  }
  return text + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

std::string chat_ml(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages)
    text += fmt::format("<|im_start|>{}\n{}<|im_end|>\n", message.role, message.content);
  return text + "<|im_start|>assistant\n";
}

std::string deepseek(std::span<const ChatMessage> messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.role == "user") {
      text += "<｜User｜>" + message.content;
    } else if (message.role == "assistant") {
      text += "<｜Assistant｜>" + message.content + "<｜end▁of▁sentence｜>";
    } else {
      text += message.content;
    }
  }
  return text + "<｜Assistant｜><think>\n";
}

std::string plain(std::span<const ChatMessage> messages) {
  if (messages.size() != 1 || messages[0].role != "user") {
    throw InvalidArgument(fmt::format(
        "the model has no chat template, so a conversation is one message of a user; there are {}, the first "
        "of role {}; use /v1/completions for other texts",
        messages.size(), messages[0].role));
  }
  return messages[0].content + "\n";
}

}  // namespace

std::string_view name(ChatMarkup markup) {
  switch (markup) {
    case ChatMarkup::kPlain:
      return "plain";
    case ChatMarkup::kLlama3:
      return "llama3";
    case ChatMarkup::kChatMl:
      return "chatml";
    case ChatMarkup::kDeepseek:
      return "deepseek";
  }
  return "";
}

std::optional<ChatMarkup> markup_of(const std::optional<std::string>& chat_template) {
  if (!chat_template) return ChatMarkup::kPlain;
  for (const auto& [mark, markup] : kMarks)
    if (chat_template->find(mark) != std::string::npos) return markup;
  return std::nullopt;
}

std::string prompt_of(ChatMarkup markup, std::span<const ChatMessage> messages) {
  switch (markup) {
    case ChatMarkup::kPlain:
      return plain(messages);
    case ChatMarkup::kLlama3:
      return llama3(messages);
    case ChatMarkup::kChatMl:
      return chat_ml(messages);
    case ChatMarkup::kDeepseek:
      return deepseek(messages);
  }
  return "";
}

}  // namespace allot::app
