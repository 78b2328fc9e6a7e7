#include "worker/engine_divergence.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace allot::worker {

using evaluation::MeteredDivergence;
using evaluation::MeteredPair;
using evaluation::MeteredText;

EngineDivergence::EngineDivergence(EngineGenerator* generator) : generator_(*generator) {}

int64_t EngineDivergence::tokens_at_once() const {
  return model::max_pass_tokens(generator_.engine().options());
}

int64_t EngineDivergence::tokens(const MeteredText& text) {
  return std::ssize(tokenised(text).ids);
}

const EngineDivergence::Tokens& EngineDivergence::tokenised(const MeteredText& text) {
  std::string key = text.prompt + '\0' + text.reply;
  const auto found = texts_.find(key);
  if (found != texts_.end()) return found->second;
  Tokens tokens{.ids = generator_.tokenised(text.prompt)};
  const auto positions = static_cast<size_t>(generator_.engine().config().max_position_embeddings);
  if (tokens.ids.size() > positions)
    throw InvalidArgument(fmt::format("question {}: its prompt has {} tokens, the model {} positions",
                                      text.question, tokens.ids.size(), positions));
  tokens.prompt_tokens = static_cast<int32_t>(tokens.ids.size());
  const std::vector<int32_t> reply = generator_.tokenizer().encode(text.reply, false);
  tokens.ids.insert(tokens.ids.end(), reply.begin(), reply.end());
  tokens.cut = tokens.ids.size() > positions;
  tokens.ids.resize(std::min(tokens.ids.size(), positions));
  return texts_.emplace(std::move(key), std::move(tokens)).first->second;
}

std::vector<MeteredDivergence> EngineDivergence::measure(std::span<const MeteredText> texts,
                                                         std::span<const MeteredPair> pairs) {
  model::Engine& engine = generator_.engine();
  const kernels::AttentionMethod& method = engine.options().attention;
  std::vector<model::FidelityText> given;
  for (const MeteredText& text : texts) {
    const Tokens& tokens = tokenised(text);
    given.push_back({.ids = tokens.ids,
                     .prompt_tokens = tokens.prompt_tokens,
                     .key = text.key,
                     .question = text.question});
  }
  std::vector<model::FidelityPair> asked;
  for (const MeteredPair& pair : pairs)
    asked.push_back({.text = pair.text, .samples = pair.samples, .attention = method});
  const auto mode =
      method.prefill == kernels::Prefill::kDense ? model::FidelityMode::kDecode : model::FidelityMode::kReply;
  const std::vector<model::Fidelity> measured = engine.fidelity(given, asked, {.mode = mode});
  std::vector<MeteredDivergence> divergences;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Tokens& tokens = tokenised(texts[pairs[i].text]);
    divergences.push_back(
        // The sum of many differences of logarithms may be below 0 by rounding.
        {.divergence = std::max(0.0, measured[i].divergence),
         .finish = tokens.cut ? Finish::kLength : Finish::kEos,
         .prompt_tokens = tokens.prompt_tokens,
         .reply_tokens = static_cast<int32_t>(tokens.ids.size()) - tokens.prompt_tokens});
  }
  return divergences;
}

}  // namespace allot::worker
