// A conversation as the text that a model was trained with: its chat template, run as transformers'
// apply_chat_template runs it. Torch-free.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/jinja/template.h"
#include "model/tokenizer.h"

namespace allot::model {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or what else the template knows
  std::string content;
};

class ChatTemplate {
 public:
  // `special_tokens` are the template's variables bos_token, eos_token and so on. Throws CorruptFile and
  // Unsupported with line and column of `source`.
  ChatTemplate(std::string_view source, const SpecialTokens& special_tokens);

  // The text that asks for the assistant's next message (add_generation_prompt), without tools. It holds its
  // special tokens: encode it without adding further ones. `now` is what a template that tells the date says.
  // Throws InvalidArgument where the template refuses the messages (with its words) or a text is not UTF-8,
  // Unsupported where they come to a part of it that allot does not run.
  std::string prompt(std::span<const ChatMessage> messages, const std::tm& now) const;

 private:
  jinja::Template template_;
  SpecialTokens special_tokens_;
};

// 26 July 2024, the date that the templates of Llama 3.1 and 3.2 name where nobody gives one: what templates
// of runs are told, so that a prompt is the same text on every day.
std::tm date_of_runs();

// How the text of a prompt becomes tokens.
enum class PromptForm {
  kText,     // as it is, with the tokens that the tokenizer adds (BOS and the like)
  kMessage,  // as the message of a user in the model's chat template, on date_of_runs()
};

class PromptEncoder {
 public:
  // Throws Unsupported for kMessage where the tokenizer's model has no chat template or one that allot does
  // not run, CorruptFile where it has one that is no Jinja. With kMessage, a `system` that is not empty is
  // the message before it.
  PromptEncoder(const Tokenizer& tokenizer, PromptForm form, std::string system = {});
  // With the same tokenizer. Throws the errors of Tokenizer::encode and ChatTemplate::prompt.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) const;

 private:
  std::optional<ChatTemplate> chat_;
  std::string system_;
};

}  // namespace allot::model
