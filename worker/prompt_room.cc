#include "worker/prompt_room.h"

#include "model/model_config.h"

namespace allot::worker {

std::optional<model::PromptRoom> prompt_room(const std::filesystem::path& model_directory,
                                             const std::optional<evaluation::MiddleCut>& cut,
                                             int32_t new_tokens) {
  if (!cut) return std::nullopt;
  const int64_t positions = model::read_model_config(model_directory).max_position_embeddings;
  return model::PromptRoom{.text_tokens = cut->tokens, .prompt_tokens = positions - new_tokens};
}

}  // namespace allot::worker
