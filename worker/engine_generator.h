// A generator that runs a model: text to tokens, the engine, tokens to text.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "evaluation/generator.h"
#include "evaluation/task.h"
#include "model/chat_template.h"
#include "model/engine.h"
#include "model/text_stream.h"
#include "model/tokenizer.h"

namespace allot::worker {

struct GenerationLimits {
  model::SamplingParams sampling;
  int32_t max_new_tokens = 256;
  std::optional<evaluation::MiddleCut> middle_cut = {};  // of the task (task.h)
};

// What a generator will be asked for: a prompt, and the reply of which divergences are measured.
struct ExpectedText {
  std::string prompt;
  std::string reply;
};
std::vector<ExpectedText> expected_texts(const evaluation::Task& task,
                                         std::span<const evaluation::Question> questions);

// What the prompts of a task are put to the model by.
struct GeneratorTask {
  GenerationLimits limits;
  // How the texts of prompts become tokens (PromptEncoder).
  model::PromptForm form = model::PromptForm::kText;
  std::string system = {};
  std::vector<ExpectedText> expected = {};
};

class EngineGenerator final : public evaluation::Generator {
 public:
  // Loads the model. `form` and `system` are how the texts of prompts become tokens (PromptEncoder). Where
  // there are `expected` texts, the engine's cache has room for as many of their prompts as are answered
  // together, with a reply of max_new_tokens or the expected one; other texts need not be shorter. Throws the
  // errors of Engine, Tokenizer and PromptEncoder.
  EngineGenerator(const std::filesystem::path& model_directory, const model::EngineOptions& options,
                  const GenerationLimits& limits, model::PromptForm form = model::PromptForm::kText,
                  const std::string& system = {}, std::span<const ExpectedText> expected = {});

  // A generator for each of the tasks, all with one engine, whose cache has room for the expected texts of
  // each: only one of them may have prompts in flight at a time. Throws what the constructor throws.
  static std::vector<std::unique_ptr<EngineGenerator>> for_tasks(const std::filesystem::path& model_directory,
                                                                 const model::EngineOptions& options,
                                                                 std::span<const GeneratorTask> tasks);

  int32_t max_prompts() const override;
  // Each prompt is tokenised once and kept: a text that comes again, as each question does under every
  // schedule, costs only a look-up. With a middle cut, a prompt that is too long loses what PromptEncoder
  // says; how many expected ones do is logged. A reply has at most max_new_tokens tokens, fewer where the
  // prompt leaves fewer of the model's positions. A prompt with continuations is answered by one
  // teacher-forced pass for all that are a single token and one for each that is more, with every position
  // sampled; their tokens are those behind the prompt's own of prompt and continuation as one text, as in
  // lm-evaluation-harness.
  void submit(const evaluation::Prompt& prompt) override;
  std::vector<evaluation::Reply> step() override;
  void cancel(uint64_t id) override;

  model::Engine& engine() { return *engine_; }
  const model::Tokenizer& tokenizer() const { return tokenizer_; }
  // The tokens of a prompt, as submit() has them.
  const std::vector<int32_t>& tokenised(const std::string& text);
  // How many of the prompts tokenised so far have lost their middle.
  int64_t cut_prompts() const { return cut_prompts_; }

 private:
  // Without its engine.
  EngineGenerator(const std::filesystem::path& model_directory, const GenerationLimits& limits,
                  model::PromptForm form, const std::string& system);
  // `options` with the sequence_tokens of the expected texts, where they have more than those say.
  model::EngineOptions with_room(model::EngineOptions options, std::span<const ExpectedText> expected);
  // Of tokens that follow `prompt` in `whole`, under the prompt's samples and draws.
  double log_likelihood(const std::vector<int32_t>& whole, size_t prompt, const evaluation::Prompt& of,
                        std::vector<float>* logits_of_prompt);
  evaluation::Reply most_likely(const evaluation::Prompt& prompt);
  bool token_has(int32_t token, std::string_view characters);

  model::Tokenizer tokenizer_;
  model::PromptEncoder encoder_;
  GenerationLimits limits_;
  std::unordered_map<std::string, std::vector<int32_t>> prompts_;
  int64_t cut_prompts_ = 0;
  std::shared_ptr<model::Engine> engine_;
  std::unordered_map<int32_t, std::string> token_texts_;
  std::deque<evaluation::Prompt> to_choose_;  // prompts with continuations that have not been answered
};

}  // namespace allot::worker
