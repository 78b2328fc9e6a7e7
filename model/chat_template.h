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

// How many tokens a prompt may have before its text loses those in the middle: the first half of
// `text_tokens` stays, and the last; decoded, they are the text that is asked (LongBench's rule).
struct PromptRoom {
  int64_t text_tokens = 0;  // of the text, with those that the tokenizer adds, without the template's markup
  int64_t prompt_tokens = 0;  // of the whole prompt; where it has more, its text loses so many more
};

class PromptEncoder {
 public:
  // Throws Unsupported for kMessage where the tokenizer's model has no chat template or one that allot does
  // not run, CorruptFile where it has one that is no Jinja. With kMessage, a `system` that is not empty is
  // the message before it. Without `room` every text is encoded whole.
  PromptEncoder(const Tokenizer& tokenizer, PromptForm form, std::string system = {},
                std::optional<PromptRoom> room = {});
  // With the same tokenizer. `cut` says whether the text lost tokens. A prompt whose markup alone is longer
  // than the room is returned longer than that. Throws the errors of Tokenizer::encode and
  // ChatTemplate::prompt.
  std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text, bool* cut = nullptr) const;

 private:
  std::vector<int32_t> encode_whole(const Tokenizer& tokenizer, const std::string& text) const;

  std::optional<ChatTemplate> chat_;
  std::string system_;
  std::optional<PromptRoom> room_;
};

}  // namespace allot::model
