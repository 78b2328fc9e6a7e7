// allot contexts: long contexts of a wanted number of tokens for the tasks that are graded as RULER's, as the
// JSON lines that RULER's own generator writes.
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <limits>
#include <string>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/run/model_options.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/ruler/contexts.h"
#include "evaluation/task.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace allot::app {
namespace {

namespace ruler = evaluation::ruler;

ruler::LongContext made(const ruler::ContextSetting& setting, uint32_t number, int64_t reply,
                        const ruler::CountTokens& count) {
  try {
    return ruler::make_context(setting, number, count);
  } catch (const InvalidArgument& error) {
    throw UsageError(fmt::format("--tokens {} leaves {} beside the {} of the reply: {}",
                                 setting.tokens + reply, setting.tokens, reply, error.what()));
  }
}

}  // namespace

int run_contexts(std::span<const std::string> arguments) {
  constexpr int64_t kMostTokens = 1 << 24;
  std::filesystem::path model;
  std::string task_name = "ruler-niah-multivalue";
  ruler::ContextSetting setting;
  int64_t tokens = 4096, count = 100, seed = 0;
  OptionSet set(
      "contexts",
      "write contexts of a wanted number of tokens, with questions and answers, for the tasks that are "
      "graded as RULER's: JSON lines on stdout, for eval --question-field input --answer-field outputs",
      "allot contexts --task ruler-qa --model assets/tiny-gsm --tokens 1024 --count 2");
  set.choice(
      "task", &task_name, ruler::context_tasks(),
      "which: four numbers in a text, the most frequent words, or a question on one of many documents");
  declare_model_option(
      &set, &model,
      "Hugging Face model, of which only the tokenizer is read: a directory, or org/name[@revision] "
      "in the local cache of the hub");
  set.integer(
      "tokens", &tokens, 1, kMostTokens, "N",
      "tokens of prompt and reply: a context has at most so many less the new tokens of the task, and not a "
      "sentence, document or word less than it may have");
  set.integer("count", &count, 1, 1'000'000, "N",
              "contexts; each depends on its number, not on how many there are");
  set.integer("seed", &seed, 0, std::numeric_limits<uint32_t>::max(), "N", "seed of all random draws");
  set.integer("hops", &setting.hops, 1, 2, "N",
              "of ruler-qa: documents that an answer takes, as of RULER's qa_1 or of its qa_2");
  set.require("model");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  setting.kind = ruler::parse_context_kind(task_name);
  if (setting.hops > 1 && setting.kind != ruler::ContextKind::kQuestions)
    throw UsageError("--hops is of --task ruler-qa; " + task_name + " has no documents");
  const auto task = evaluation::make_task(
      {task_name, std::string(evaluation::kFileStyle), evaluation::read_task_definition(task_name)});
  const int64_t reply = task->generation_defaults().max_new_tokens;
  setting.tokens = tokens - reply;
  setting.seed = static_cast<uint32_t>(seed);
  const model::Tokenizer tokenizer = model::Tokenizer::load(model);
  const model::PromptEncoder encoder(
      tokenizer, task->message() ? model::PromptForm::kMessage : model::PromptForm::kText);
  const auto tokens_of = [&](const std::string& prompt) {
    return std::ssize(encoder.encode(tokenizer, prompt));
  };
  const auto& stop = watch_stop_signals();
  ProgressLine line("contexts");
  for (int64_t number = 0; number < count; ++number) {
    if (stop.load()) throw Error("stopped before all contexts were written");
    const ruler::LongContext context = made(setting, static_cast<uint32_t>(number), reply, tokens_of);
    std::cout << nlohmann::ordered_json{{"index", number},
                                        {"input", context.input},
                                        {"outputs", context.outputs},
                                        {"length", context.tokens + reply}}
                     .dump()
              << '\n';
    line.update(number + 1, count);
  }
  return 0;
}

}  // namespace allot::app
