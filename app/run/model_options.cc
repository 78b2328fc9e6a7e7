#include "app/run/model_options.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/hub_cache.h"

namespace allot::app {
namespace {

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

std::filesystem::path model_directory(const std::filesystem::path& value) {
  return model::locate(value, environment);
}

void declare_model_option(OptionSet* set, std::filesystem::path* model, const char* help) {
  set->custom({.name = "model",
               .hint = "PATH",
               .help = help,
               .set =
                   [=](const std::string& value) {
                     *model = model_directory(value);
                     return std::string();
                   },
               .get = [=] { return std::vector{model->string()}; }});
}

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter, const char* help) {
  set->custom(
      {.name = "adapter",
       .hint = "PATH",
       .help = help,
       .set =
           [=](const std::string& value) {
             adapter->reset();
             if (!value.empty()) *adapter = model_directory(value);
             return std::string();
           },
       .get = [=] { return *adapter ? std::vector{(*adapter)->string()} : std::vector<std::string>{}; }});
}

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter) {
  declare_adapter_option(
      set, adapter,
      "LoRA adapter as PEFT saves it, merged into the model's weights: a directory, or a name as of --model");
}

void check_adapter(const std::optional<std::filesystem::path>& adapter,
                   const std::optional<int64_t>& random_weights) {
  if (!adapter || !random_weights) return;
  throw UsageError("--adapter " + adapter->string() + " and --random-weights " +
                   std::to_string(*random_weights) +
                   " exclude each other: an adapter belongs to the weights it was trained on");
}

}  // namespace allot::app
