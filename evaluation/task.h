// A task: questions with checkable answers, how to prompt for them, how to find the answer in a reply and
// when it is right. No torch, no sockets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/generation.h"

namespace allot::evaluation {

struct Question {
  uint32_t id = 0;  // 0-based line of the data file: the coordinate of its draws
  std::string text;
  std::string solution;  // worked solution as published, for teacher forcing and golden tests
  std::string answer;    // the gold answer alone
};

// A data file, read whole.
struct Dataset {
  std::filesystem::path path;
  std::string sha256;
  std::vector<Question> questions;
};

// What a reply is worth.
struct Grade {
  double score = 0;                   // 1 right, 0 wrong; a task with partial credit gives what is between
  bool extracted = false;             // an answer was found in the reply
  std::optional<std::string> answer;  // what was found
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string_view name() const = 0;  // "gsm8k"
  // Raised with every change of prompt, extraction or grading.
  virtual int version() const = 0;
  // Throws NotFound, or CorruptFile naming file, line and field.
  virtual Dataset load(const std::filesystem::path& file) const = 0;
  // Text given to the tokenizer, chat markup included where the prompt style has it.
  virtual std::string prompt(const Question& question) const = 0;
  virtual Grade grade(const Question& question, std::string_view reply) const = 0;
  // True when the reply so far already holds its final answer, so that decoding can stop.
  virtual bool complete(std::string_view reply) const = 0;
  // complete() can only turn true with a piece of text that has one of these characters; empty: it never
  // does. Spares decoding loops the reply's text after every token.
  virtual std::string_view completing_characters() const = 0;

  // How replies are generated where nobody says otherwise. Its stop rule is kAnswer where complete()
  // can turn true.
  virtual Generation generation_defaults() const = 0;

  // For predictions from elsewhere. `answer` is a gold answer, bare or as a worked solution; the question has
  // no text and number 0. Throws InvalidArgument when it holds no answer.
  virtual Question gold(std::string_view answer) const = 0;
  // True when `answer`, as it stands and without extraction, is worth what the question's gold answer is.
  virtual bool equal(const Question& question, std::string_view answer) const = 0;
};

// How GSM8K is asked and answered.
enum class PromptStyle {
  kBoxed,      // S2ANTA paper, Table 21: question, blank line, instruction; last \boxed{}
  kLlamaChat,  // Table 23: Meta chat template; integer on the last line
  // Table 21's text in the chat template of the DeepSeek-R1 distilled models, which opens a <think> block
  kDeepseekChat,
  kPlain,  // question, newline; the reply is a GSM8K solution and the answer follows "####"
};
std::string_view name(PromptStyle style);
PromptStyle parse_prompt_style(std::string_view text);  // one of prompt_style_names()
std::vector<std::string> prompt_style_names();          // "boxed", "llama-chat", "deepseek-chat", "plain"
// The style a model expects: kLlamaChat when its chat template uses Llama 3 headers, kBoxed when it has
// another chat template (DeepSeek's, too: the paper puts its question bare), kPlain when it has none.
PromptStyle prompt_style_for(const std::optional<std::string>& chat_template);

std::vector<std::string> task_names();
// Throws InvalidArgument listing the known tasks.
std::unique_ptr<Task> make_task(std::string_view name, PromptStyle style);

}  // namespace allot::evaluation
