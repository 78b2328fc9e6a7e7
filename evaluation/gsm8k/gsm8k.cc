#include "evaluation/gsm8k/gsm8k.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "evaluation/gsm8k/extraction.h"
#include "evaluation/gsm8k/latex.h"
#include "evaluation/text.h"

namespace allot::evaluation::gsm8k {
namespace {

// S2ANTA paper, Table 21.
constexpr std::string_view kBoxedInstruction =
    "Please reason step by step, and put your final numeric answer within \\boxed{}.";
// Table 23.
constexpr std::string_view kLlamaSystem =
    "You are a precise mathematician. Explain your reasoning step by step, then output ONLY the final number on a new line.";

// S2ANTA paper, Appendix O: the settings of all runs on GSM8K.
constexpr double kPaperTemperature = 0.6;
constexpr double kPaperTopP = 0.95;
constexpr double kPaperRepetitionPenalty = 1.1;
// Limits on the new tokens. Appendix O names none. "Towards Multiplier-Free Transformers with Stochastic
// Attention", section 4.2, uses the same models, prompts and settings and sets these limits, for
// DeepSeek-R1-Distill-Qwen-7B and for Llama-3.1-8B-Instruct.
constexpr int32_t kReasoningNewTokens = 4096;
constexpr int32_t kLlamaNewTokens = 1024;

// The text after the last "####" of a worked solution; all of a text without one.
std::string_view published_answer(std::string_view solution) {
  const size_t marker = solution.rfind(kMarker);
  return trim(marker == std::string::npos ? solution : solution.substr(marker + kMarker.size()));
}

// Whether the gold answer is a percentage: it says so itself, or the last line of the worked solution writes
// its value with a percent sign ("… = 50%" above "#### 50"), as 105 of GSM8K's 8,792 do.
bool gold_is_percentage(const Question& question, const Number& gold) {
  if (gold.percent) return true;
  const std::string_view solution = question.solution;
  const std::string_view line =
      last_line(solution.substr(0, std::min(solution.rfind(kMarker), solution.size())));
  for (size_t sign = line.find('%'); sign != std::string::npos; sign = line.find('%', sign + 1)) {
    const std::string_view before = trim(line.substr(0, sign));
    size_t start = before.size();
    while (start > 0 && (is_digit(before[start - 1]) || before[start - 1] == ',' || before[start - 1] == '.'))
      --start;
    const std::optional<Number> number = parse_number(before.substr(start));
    if (number && number->value == gold.value) return true;
  }
  return false;
}

bool same_value(const Question& question, const Number& answer) {
  const std::optional<Number> gold = parse_number(question.answer);
  return gold && answer.value == gold->value && (!answer.percent || gold_is_percentage(question, *gold));
}

std::optional<std::string_view> extract(PromptStyle style, std::string_view reply) {
  switch (style) {
    case PromptStyle::kBoxed:
    case PromptStyle::kDeepseekChat:
    case PromptStyle::kChat:
      return boxed_answer(reply);
    case PromptStyle::kLlamaChat:
      return last_line_answer(reply);
    case PromptStyle::kPlain:
      return marked_answer(reply);
  }
  return std::nullopt;
}

// True while the reply is inside a <think> block, where a \boxed{} is a guess and not the answer.
bool thinking(PromptStyle style, std::string_view reply) {
  const size_t open = reply.rfind("<think>");
  const bool open_in_prompt = style == PromptStyle::kDeepseekChat;
  if (open == std::string::npos && !open_in_prompt) return false;
  return reply.find("</think>", open == std::string::npos ? 0 : open) == std::string::npos;
}

Question read_question(const DataRow& row, const FieldNames& fields, const std::string& place) {
  Question question;
  question.text = row.values[0];
  question.solution = row.values[1];
  if (question.solution.find(kMarker) == std::string::npos)
    throw CorruptFile(fmt::format(
        "{}: field \"{}\" has no \"####\"; in task gsm8k it ends with \"#### \" and the final number, and a "
        "task file (docs/tasks.md) takes bare answers",
        place, fields.answer));
  question.answer = published_answer(question.solution);
  if (!parse_number(question.answer))
    throw CorruptFile(
        fmt::format("{}: field \"{}\" ends with \"#### {}\", expected one number after \"####\"", place,
                    fields.answer, question.answer.substr(0, 40)));
  return question;
}

}  // namespace

Dataset Gsm8k::load(const std::filesystem::path& file, const FieldNames& fields) const {
  check(fields);
  std::error_code unreadable;
  if (!std::filesystem::exists(file, unreadable))
    throw NotFound(fmt::format("{} does not exist; {}", file.string(), kWhereToGet));
  const DataRows data = read_rows(file, std::array{DataField{fields.question}, DataField{fields.answer}});
  Dataset dataset{.path = file, .sha256 = data.sha256, .fields = fields, .questions = {}};
  for (const DataRow& row : data.rows) {
    dataset.questions.push_back(read_question(row, fields, place(file, row)));
    dataset.questions.back().id = static_cast<uint32_t>(dataset.questions.size() - 1);
  }
  return dataset;
}

std::string Gsm8k::prompt(const Question& question) const {
  switch (style_) {
    case PromptStyle::kBoxed:
    case PromptStyle::kChat:
      return fmt::format("{}\n\n{}", question.text, kBoxedInstruction);
    case PromptStyle::kLlamaChat:
      // Without <|begin_of_text|>: the tokenizer's post-processor puts it in front, as before
      // any other prompt.
      return fmt::format(
          "<|start_header_id|>system<|end_header_id|>\n\n{}<|eot_id|>"
          "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
          "<|start_header_id|>assistant<|end_header_id|>\n\n",
          kLlamaSystem, question.text);
    case PromptStyle::kDeepseekChat:
      // Without <｜begin▁of▁sentence｜>, for the same reason.
      return fmt::format("<｜User｜>{}\n\n{}<｜Assistant｜><think>\n", question.text, kBoxedInstruction);
    case PromptStyle::kPlain:
      return question.text + "\n";
  }
  return {};
}

Grade Gsm8k::grade(const Question& question, std::string_view reply) const {
  Grade grade;
  const std::optional<std::string_view> found = extract(style_, reply);
  if (!found) return grade;
  grade.answer = std::string(found->substr(0, kMaxAnswerBytes));
  const std::optional<Number> answer = parse_number(*found);
  grade.extracted = answer.has_value();
  grade.score = answer && same_value(question, *answer) ? 1 : 0;
  return grade;
}

bool Gsm8k::complete(std::string_view reply) const {
  switch (style_) {
    case PromptStyle::kBoxed:
    case PromptStyle::kDeepseekChat: {
      // The box must hold a number: an empty box is a repetition of the instruction.
      const std::optional<std::string_view> boxed = last_boxed(reply);
      return boxed && parse_number(*boxed) && !thinking(style_, reply);
    }
    case PromptStyle::kLlamaChat:
      return false;  // any line may turn out to be the last
    case PromptStyle::kChat:
      return false;  // the template may have opened a <think> block, where a \boxed{} is a guess
    case PromptStyle::kPlain: {
      const size_t marker = reply.find(kMarker);
      if (marker == std::string::npos) return false;
      const std::string_view after = reply.substr(marker + kMarker.size());
      const size_t end = after.find('\n');
      return end != std::string::npos && !trim(after.substr(0, end)).empty();
    }
  }
  return false;
}

std::string_view Gsm8k::completing_characters() const {
  switch (style_) {
    case PromptStyle::kBoxed:
    case PromptStyle::kDeepseekChat:
      return "}>";  // the closing brace, or the end of </think>
    case PromptStyle::kLlamaChat:
    case PromptStyle::kChat:
      return "";
    case PromptStyle::kPlain:
      return "\n";
  }
  return "";
}

Generation Gsm8k::generation_defaults() const {
  Generation generation{
      .stop = completing_characters().empty() ? StopRule::kEos : StopRule::kAnswer,
  };
  if (style_ == PromptStyle::kPlain) return generation;
  generation.temperature = kPaperTemperature;
  generation.top_p = kPaperTopP;
  generation.repetition_penalty = kPaperRepetitionPenalty;
  generation.max_new_tokens = style_ == PromptStyle::kLlamaChat ? kLlamaNewTokens : kReasoningNewTokens;
  return generation;
}

Question Gsm8k::gold(std::string_view answer) const {
  Question question;
  question.solution = answer;
  question.answer = published_answer(answer);
  if (!parse_number(question.answer))
    throw InvalidArgument(
        fmt::format("gsm8k: the gold answer \"{}\" is not a number; expected one such as 18, 1,234.50 or "
                    "\\frac{{1}}{{2}}, bare or after \"####\"",
                    question.answer.substr(0, 40)));
  return question;
}

bool Gsm8k::equal(const Question& question, std::string_view answer) const {
  const std::optional<Number> number = parse_number(answer);
  return number && same_value(question, *number);
}

}  // namespace allot::evaluation::gsm8k
