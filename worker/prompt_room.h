// How long the prompts of a task may be before they lose their middle.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "evaluation/task.h"
#include "model/chat_template.h"

namespace allot::worker {

// So long that the positions of the model in this directory have room for `new_tokens`, and as `cut` says;
// nothing without a cut. Throws what read_model_config throws.
std::optional<model::PromptRoom> prompt_room(const std::filesystem::path& model_directory,
                                             const std::optional<evaluation::MiddleCut>& cut,
                                             int32_t new_tokens);

}  // namespace allot::worker
