#include "worker/engine_generator.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace allot::worker {
EngineGenerator::EngineGenerator(const std::filesystem::path& model_directory,
                                 const model::EngineOptions& options, const GenerationLimits& limits)
    : tokenizer_(model::Tokenizer::load(model_directory)),
      engine_(model_directory, options),
      limits_(limits) {}

int32_t EngineGenerator::max_prompts() const {
  return engine_.options().max_sequences;
}

const std::vector<int32_t>& EngineGenerator::tokenised(const std::string& text) {
  const auto found = prompts_.find(text);
  if (found != prompts_.end()) return found->second;
  return prompts_.emplace(text, tokenizer_.encode(text)).first->second;
}

bool EngineGenerator::token_has(int32_t token, std::string_view characters) {
  auto found = token_texts_.find(token);
  if (found == token_texts_.end()) {
    const int32_t ids[] = {token};
    found = token_texts_.emplace(token, text_of(ids, /*skip_special_tokens=*/false)).first;
  }
  return found->second.find_first_of(characters) != std::string::npos;
}

// Models have rows for more tokens than the tokenizer knows (Qwen2-7B: 152,064), and one of those may be
// chosen, though rarely. Such a token has no text.
std::string EngineGenerator::text_of(std::span<const int32_t> tokens, bool skip_special_tokens) const {
  if (std::ranges::all_of(tokens, [this](int32_t id) { return tokenizer_.has(id); }))
    return tokenizer_.decode(tokens, skip_special_tokens);
  std::vector<int32_t> known;
  std::ranges::copy_if(tokens, std::back_inserter(known), [this](int32_t id) { return tokenizer_.has(id); });
  return tokenizer_.decode(known, skip_special_tokens);
}

void EngineGenerator::submit(const evaluation::Prompt& prompt) {
  const std::vector<int32_t>& ids = tokenised(prompt.text);
  const int64_t room = engine_.config().max_position_embeddings - static_cast<int64_t>(ids.size());
  if (room < 1)
    throw InvalidArgument(fmt::format(
        "question {}: its prompt of {} tokens leaves no room for an answer in the model's {} positions",
        prompt.question, ids.size(), engine_.config().max_position_embeddings));
  model::GenerationRequest request;
  request.id = prompt.id;
  request.prompt = ids;
  request.samples = prompt.samples;
  request.key = prompt.key;
  request.question = prompt.question;
  request.sampling = limits_.sampling;
  request.max_new_tokens = static_cast<int32_t>(std::min<int64_t>(limits_.max_new_tokens, room));
  if (prompt.complete)
    request.stop = [this, complete = prompt.complete,
                    completing = prompt.completing](std::span<const int32_t> output) {
      return token_has(output.back(), completing) && complete(text_of(output));
    };
  engine_.submit(std::move(request));
}

std::vector<evaluation::Reply> EngineGenerator::step() {
  std::vector<evaluation::Reply> replies;
  for (const model::GenerationResult& result : engine_.step())
    replies.push_back({.id = result.id,
                       .text = text_of(result.tokens),
                       .finish = result.finish,
                       .prompt_tokens = result.prompt_tokens,
                       .output_tokens = static_cast<int32_t>(result.tokens.size())});
  return replies;
}

void EngineGenerator::cancel(uint64_t id) {
  engine_.cancel(id);
}

}  // namespace allot::worker
