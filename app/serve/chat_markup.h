// A conversation as one text, in the markup that a model was trained with. Chat templates are programs in
// Jinja; this is no interpreter of them. It knows the markup of a few families, finds the family by the
// template's marks, and refuses the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace allot::app {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

enum class ChatMarkup {
  kPlain,     // no template: the one message of a user, newline, as prompt style `plain` has it
  kLlama3,    // <|start_header_id|>
  kChatMl,    // <|im_start|>: Qwen2, Qwen3 and others
  kDeepseek,  // <｜User｜>, of the DeepSeek-R1 distilled models, whose replies open with <think>
};
std::string_view name(ChatMarkup markup);

// The family of a template; kPlain without one. Nothing where the template is of no known family.
std::optional<ChatMarkup> markup_of(const std::optional<std::string>& chat_template);

// The text that asks for the assistant's next message. BOS is left to the tokenizer. Throws InvalidArgument
// for a conversation that the markup cannot say: kPlain takes one message, of a user.
std::string prompt_of(ChatMarkup markup, std::span<const ChatMessage> messages);

}  // namespace allot::app
