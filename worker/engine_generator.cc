#include "worker/engine_generator.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "worker/prompt_room.h"

namespace allot::worker {

std::vector<ExpectedText> expected_texts(const evaluation::Task& task,
                                         std::span<const evaluation::Question> questions) {
  std::vector<ExpectedText> texts;
  texts.reserve(questions.size());
  for (const evaluation::Question& question : questions)
    texts.push_back({.prompt = task.prompt(question), .reply = question.solution});
  return texts;
}

EngineGenerator::EngineGenerator(const std::filesystem::path& model_directory, const GenerationLimits& limits,
                                 model::PromptForm form, const std::string& system)
    : tokenizer_(model::Tokenizer::load(model_directory)),
      encoder_(tokenizer_, form, system,
               prompt_room(model_directory, limits.middle_cut, limits.max_new_tokens)),
      limits_(limits) {}

EngineGenerator::EngineGenerator(const std::filesystem::path& model_directory,
                                 const model::EngineOptions& options, const GenerationLimits& limits,
                                 model::PromptForm form, const std::string& system,
                                 std::span<const ExpectedText> expected)
    : EngineGenerator(model_directory, limits, form, system) {
  engine_ = std::make_shared<model::Engine>(model_directory, with_room(options, expected));
}

std::vector<std::unique_ptr<EngineGenerator>> EngineGenerator::for_tasks(
    const std::filesystem::path& model_directory, const model::EngineOptions& options,
    std::span<const GeneratorTask> tasks) {
  std::vector<std::unique_ptr<EngineGenerator>> generators;
  model::EngineOptions with_room = options;
  for (const GeneratorTask& task : tasks) {
    generators.emplace_back(new EngineGenerator(model_directory, task.limits, task.form, task.system));
    with_room = generators.back()->with_room(with_room, task.expected);
  }
  const auto engine = std::make_shared<model::Engine>(model_directory, with_room);
  for (const auto& generator : generators) generator->engine_ = engine;
  return generators;
}

model::EngineOptions EngineGenerator::with_room(model::EngineOptions options,
                                                std::span<const ExpectedText> expected) {
  for (const ExpectedText& text : expected) {
    const int64_t reply = std::ssize(tokenizer_.encode(text.reply, false));
    const int64_t tokens =
        std::ssize(tokenised(text.prompt)) + std::max<int64_t>(reply, limits_.max_new_tokens);
    options.sequence_tokens = std::max(options.sequence_tokens.value_or(0), tokens);
  }
  if (cut_prompts_ > 0)
    spdlog::info("{} of {} different prompts are too long and lose their middle", cut_prompts_,
                 prompts_.size());
  return options;
}

int32_t EngineGenerator::max_prompts() const {
  return engine_->options().max_sequences;
}

const std::vector<int32_t>& EngineGenerator::tokenised(const std::string& text) {
  const auto found = prompts_.find(text);
  if (found != prompts_.end()) return found->second;
  bool cut = false;
  std::vector<int32_t> ids = encoder_.encode(tokenizer_, text, &cut);
  cut_prompts_ += cut;
  return prompts_.emplace(text, std::move(ids)).first->second;
}

bool EngineGenerator::token_has(int32_t token, std::string_view characters) {
  auto found = token_texts_.find(token);
  if (found == token_texts_.end()) {
    const int32_t ids[] = {token};
    found =
        token_texts_.emplace(token, model::known_text(tokenizer_, ids, /*skip_special_tokens=*/false)).first;
  }
  return found->second.find_first_of(characters) != std::string::npos;
}

double EngineGenerator::log_likelihood(const std::vector<int32_t>& whole, size_t prompt,
                                       const evaluation::Prompt& of, std::vector<float>* logits_of_prompt) {
  const auto vocabulary = static_cast<size_t>(engine_->config().vocab_size);
  const std::span<const int32_t> before(whole.data(), whole.size() - 1);
  // All single tokens follow the same pass.
  const bool shared = before.size() == prompt;
  std::vector<float> own;
  std::vector<float>& logits = shared ? *logits_of_prompt : own;
  if (logits.empty()) {
    logits = engine_->logits(before, of.samples, of.key, of.question);
    logits.erase(logits.begin(), logits.begin() + static_cast<ptrdiff_t>((prompt - 1) * vocabulary));
  }
  double sum = 0;
  for (size_t at = prompt; at < whole.size(); ++at) {
    const std::span<const float> row(logits.data() + (at - prompt) * vocabulary, vocabulary);
    const float largest = *std::ranges::max_element(row);
    double total = 0;
    for (const float logit : row) total += std::exp(static_cast<double>(logit - largest));
    sum += static_cast<double>(row[static_cast<size_t>(whole[at])] - largest) - std::log(total);
  }
  return sum;
}

evaluation::Reply EngineGenerator::most_likely(const evaluation::Prompt& prompt) {
  const std::vector<int32_t>& ids = tokenised(prompt.text);
  evaluation::Reply reply;
  reply.id = prompt.id;
  reply.finish = Finish::kStop;
  reply.prompt_tokens = static_cast<int32_t>(ids.size());
  std::vector<float> logits_of_prompt;
  std::optional<double> best;
  for (const std::string& text : prompt.continuations) {
    const std::vector<int32_t> whole = encoder_.encode(tokenizer_, prompt.text + text);
    if (whole.size() <= ids.size() || !std::equal(ids.begin(), ids.end(), whole.begin()))
      throw InvalidArgument(fmt::format(
          "question {}: \"{}\" does not begin with a token of its own behind the prompt, whose last one changes "
          "with it; begin it with a space, or end the prompt without one",
          prompt.question, text));
    const double likelihood = log_likelihood(whole, ids.size(), prompt, &logits_of_prompt);
    if (best && likelihood <= *best) continue;
    best = likelihood;
    reply.text = text;
    reply.output_tokens = static_cast<int32_t>(whole.size() - ids.size());
  }
  return reply;
}

void EngineGenerator::submit(const evaluation::Prompt& prompt) {
  if (!prompt.continuations.empty()) {
    to_choose_.push_back(prompt);
    return;
  }
  const std::vector<int32_t>& ids = tokenised(prompt.text);
  const int64_t room = engine_->config().max_position_embeddings - static_cast<int64_t>(ids.size());
  if (room < 1)
    throw InvalidArgument(fmt::format(
        "question {}: its prompt of {} tokens leaves no room for an answer in the model's {} positions",
        prompt.question, ids.size(), engine_->config().max_position_embeddings));
  model::GenerationRequest request;
  request.id = prompt.id;
  request.prompt = ids;
  request.samples = prompt.samples;
  request.key = prompt.key;
  request.question = prompt.question;
  request.sampling = limits_.sampling;
  request.max_new_tokens = static_cast<int32_t>(std::min<int64_t>(limits_.max_new_tokens, room));
  if (prompt.complete || prompt.on_text) {
    request.stop = [this, complete = prompt.complete, completing = prompt.completing,
                    on_text = prompt.on_text,
                    stream = model::TextStream(tokenizer_)](std::span<const int32_t> output) mutable {
      if (on_text) on_text(stream.add(output));
      return complete && token_has(output.back(), completing) &&
             complete(model::known_text(tokenizer_, output));
    };
  }
  engine_->submit(std::move(request));
}

std::vector<evaluation::Reply> EngineGenerator::step() {
  std::vector<evaluation::Reply> replies;
  if (!to_choose_.empty()) {
    const evaluation::Prompt prompt = std::move(to_choose_.front());
    to_choose_.pop_front();
    replies.push_back(most_likely(prompt));
  }
  for (const model::GenerationResult& result : engine_->step())
    replies.push_back({.id = result.id,
                       .text = model::known_text(tokenizer_, result.tokens),
                       .finish = result.finish,
                       .prompt_tokens = result.prompt_tokens,
                       .output_tokens = static_cast<int32_t>(result.tokens.size())});
  return replies;
}

void EngineGenerator::cancel(uint64_t id) {
  std::erase_if(to_choose_, [id](const evaluation::Prompt& prompt) { return prompt.id == id; });
  engine_->cancel(id);
}

}  // namespace allot::worker
