#include "app/run/adapter_options.h"

#include <string>

#include "base/error.h"

namespace allot::app {

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter) {
  set->path("adapter", adapter,
            "directory of a LoRA adapter as PEFT saves it, merged into the model's weights");
}

void check_adapter(const std::optional<std::filesystem::path>& adapter,
                   const std::optional<int64_t>& random_weights) {
  if (!adapter || !random_weights) return;
  throw UsageError("--adapter " + adapter->string() + " and --random-weights " +
                   std::to_string(*random_weights) +
                   " exclude each other: an adapter belongs to the weights it was trained on");
}

}  // namespace allot::app
