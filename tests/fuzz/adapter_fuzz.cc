// The reader of LoRA adapters: adapter_config.json, a zero byte, adapter_model.safetensors. What it accepts
// for a small decoder is added to weights, element by element.
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "model/adapter.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace allot::fuzz {
namespace {

struct Directory {
  Directory() {
    links.link("adapter_config.json", settings);
    links.link("adapter_model.safetensors", tensors);
  }
  MemoryFile settings;
  MemoryFile tensors;
  LinkDirectory links;
};

// q_proj [4, 4], k_proj [2, 4], down_proj [4, 3] and so on.
model::ModelConfig decoder() {
  model::ModelConfig config;
  config.vocab_size = 4;
  config.hidden_size = 4;
  config.intermediate_size = 3;
  config.num_layers = 2;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 2;
  return config;
}

void merge(const model::Adapter& adapter) {
  require(!adapter.modules().empty(), "an adapter has a module");
  require(adapter.identity().fingerprint.size() == 64, "an adapter has a fingerprint");
  for (const auto& [name, module] : adapter.modules()) {
    const auto update = adapter.update_of(name + ".weight");
    require(update && update->rank() == module.rank, "a module has the rank that its factors have");
    const int64_t elements = update->b.shape[0] * update->in_features();
    require(elements <= 16, "an update has the shape of its weight");
    std::vector<float> whole(static_cast<size_t>(elements)), parts = whole;
    add_elements(*update, 0, whole);
    add_elements(*update, 0, std::span(parts).first(1));
    add_elements(*update, 1, std::span(parts).subspan(1));
    for (size_t i = 0; i < whole.size(); ++i)
      require(whole[i] == parts[i] || whole[i] != whole[i], "an element does not depend on its range");
  }
}

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace allot::fuzz;
  static Directory directory;
  static const allot::model::ModelConfig config = decoder();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  if (end == std::string_view::npos) return 0;
  directory.settings.set(input.substr(0, end));
  directory.tensors.set(input.substr(end + 1));
  try {
    merge(allot::model::Adapter::open(directory.links.path(), config));
  } catch (const allot::Error&) {
    // Refused with a typed error.
  }
  return 0;
}
