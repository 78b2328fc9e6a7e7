#include "evaluation/task.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/error.h"
#include "base/file.h"
#include "evaluation/file_task.h"
#include "evaluation/grader.h"
#include "evaluation/gsm8k/gsm8k.h"

namespace allot::evaluation {
namespace {

constexpr std::array<PromptStyle, 5> kStyles = {PromptStyle::kBoxed, PromptStyle::kLlamaChat,
                                                PromptStyle::kDeepseekChat, PromptStyle::kChat,
                                                PromptStyle::kPlain};

struct TaskEntry {
  std::string_view name;
  std::unique_ptr<Task> (*make)(PromptStyle);
};

// A new task adds its line here.
constexpr std::array<TaskEntry, 1> kTasks = {{
    {"gsm8k",
     [](PromptStyle style) -> std::unique_ptr<Task> { return std::make_unique<gsm8k::Gsm8k>(style); }},
}};

}  // namespace

// Task files that come with allot.
extern const std::string_view kHumanEval;
extern const std::string_view kHumanEvalChat;
extern const std::string_view kLongBenchV2;
extern const std::string_view kLongBenchV2At32k;
extern const std::string_view kMmluDeepseek;
extern const std::string_view kMmluLikelihood;
extern const std::string_view kMmluLlama;
extern const std::string_view kMmluChat;
extern const std::string_view kRulerFwe;
extern const std::string_view kRulerNiahMultivalue;
extern const std::string_view kRulerQa;

namespace {

struct ShippedTask {
  std::string_view name;
  const std::string_view* definition;
};

// A new task file adds its line here and in CMakeLists.txt.
constexpr std::array<ShippedTask, 11> kShipped = {{{"humaneval", &kHumanEval},
                                                   {"humaneval-chat", &kHumanEvalChat},
                                                   {"longbench-v2", &kLongBenchV2},
                                                   {"longbench-v2-32k", &kLongBenchV2At32k},
                                                   {"mmlu-chat", &kMmluChat},
                                                   {"mmlu-deepseek", &kMmluDeepseek},
                                                   {"mmlu-likelihood", &kMmluLikelihood},
                                                   {"mmlu-llama", &kMmluLlama},
                                                   {"ruler-fwe", &kRulerFwe},
                                                   {"ruler-niah-multivalue", &kRulerNiahMultivalue},
                                                   {"ruler-qa", &kRulerQa}}};

}  // namespace

std::vector<std::string> shipped_task_names() {
  std::vector<std::string> names;
  for (const ShippedTask& task : kShipped) names.emplace_back(task.name);
  return names;
}

std::vector<std::string> all_task_names() {
  std::vector<std::string> names = task_names();
  std::ranges::move(shipped_task_names(), std::back_inserter(names));
  return names;
}

std::string_view name(PromptStyle style) {
  switch (style) {
    case PromptStyle::kBoxed:
      return "boxed";
    case PromptStyle::kLlamaChat:
      return "llama-chat";
    case PromptStyle::kDeepseekChat:
      return "deepseek-chat";
    case PromptStyle::kChat:
      return "chat";
    case PromptStyle::kPlain:
      return "plain";
  }
  return "";
}

PromptStyle parse_prompt_style(std::string_view text) {
  for (const PromptStyle style : kStyles)
    if (name(style) == text) return style;
  throw InvalidArgument(fmt::format("prompt style \"{}\" is unknown; known are: {}", text,
                                    fmt::join(prompt_style_names(), ", ")));
}

std::vector<std::string> prompt_style_names() {
  std::vector<std::string> names;
  for (const PromptStyle style : kStyles) names.emplace_back(name(style));
  return names;
}

PromptStyle prompt_style_for(const std::optional<std::string>& chat_template, std::string_view eos_token) {
  if (!chat_template) return PromptStyle::kPlain;
  // Other templates have no mark of their own and end turns with whatever the model's eos_token is.
  for (const std::string_view turn_end : {"<|im_end|>", "<|eot_id|>"}) {
    if (chat_template->find(turn_end) != std::string::npos)
      return eos_token == turn_end ? PromptStyle::kChat : PromptStyle::kPlain;
  }
  return PromptStyle::kChat;
}

bool asks_by_message(std::string_view style_name) {
  return style_name == name(PromptStyle::kChat) || style_name == kFileMessageStyle;
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const TaskEntry& task : kTasks) names.emplace_back(task.name);
  return names;
}

std::unique_ptr<Task> make_task(std::string_view name, PromptStyle style) {
  for (const TaskEntry& task : kTasks)
    if (task.name == name) return task.make(style);
  throw InvalidArgument(
      fmt::format("task \"{}\" is unknown; known are: {}", name, fmt::join(task_names(), ", ")));
}

std::unique_ptr<Task> make_task(const TaskSource& source) {
  return make_graded_task(source, nullptr);
}

std::unique_ptr<Task> make_graded_task(const TaskSource& source, std::unique_ptr<Grader> grader) {
  if (source.definition.empty()) return make_task(source.name, parse_prompt_style(source.prompt_style));
  return std::make_unique<FileTask>(source.definition, std::move(grader));
}

std::string read_task_definition(const std::string& task) {
  for (const TaskEntry& known : kTasks)
    if (known.name == task) return {};
  for (const ShippedTask& shipped : kShipped)
    if (shipped.name == task) return std::string(*shipped.definition);
  if (!std::filesystem::is_regular_file(task)) {
    throw UsageError(
        fmt::format("--task {} is neither a task of allot ({}) nor a task file; docs/tasks.md says how "
                    "to write one",
                    task, fmt::join(all_task_names(), ", ")));
  }
  std::string text = read_file(task);
  try {
    FileTask checked(text, nullptr);
  } catch (const CorruptFile& error) {
    std::string message = task;
    throw CorruptFile(message.append(": ").append(error.what()));
  }
  return text;
}

}  // namespace allot::evaluation
