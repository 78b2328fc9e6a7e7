// The option --adapter of the commands that read a model's weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "app/cli/options.h"

namespace allot::app {

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter);

// Throws UsageError when weights that are made at random are to get an adapter.
void check_adapter(const std::optional<std::filesystem::path>& adapter,
                   const std::optional<int64_t>& random_weights);

}  // namespace allot::app
