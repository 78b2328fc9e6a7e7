#include "app/files/states_file.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/error.h"

namespace allot::app {
namespace {

class NamedTensors {
 public:
  NamedTensors(const model::SafetensorsFile& file, std::string path) : path_(std::move(path)) {
    for (const model::TensorView& tensor : file.tensors()) tensors_.emplace(tensor.name, &tensor);
  }

  bool contains(const std::string& name) const { return tensors_.contains(name); }

  const model::TensorView& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw CorruptFile(fmt::format(
          "{}: no tensor {}; expected states as allot_attention.recording writes them", path_, name));
    }
    const model::TensorView& tensor = *found->second;
    if (tensor.dtype != model::TensorDType::kF32) {
      throw CorruptFile(fmt::format("{}: tensor {} has dtype {}, expected F32", path_, name,
                                    model::dtype_name(tensor.dtype)));
    }
    return tensor;
  }

  [[noreturn]] void refuse(const model::TensorView& tensor, const std::string& expected) const {
    throw CorruptFile(fmt::format("{}: tensor {} has shape [{}], expected {}", path_, tensor.name,
                                  fmt::join(tensor.shape, ", "), expected));
  }

 private:
  std::string path_;
  std::map<std::string, const model::TensorView*> tensors_;
};

std::span<const float> elements_of(const model::TensorView& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

bool has_dimensions(const model::TensorView& tensor, size_t count) {
  return tensor.shape.size() == count && std::ranges::count(tensor.shape, 0) == 0;
}

}  // namespace

StatesFile::StatesFile(const std::filesystem::path& path) : file_(path) {
  const NamedTensors tensors(file_, path.string());
  for (int64_t layer = 0; layer == 0 || tensors.contains(fmt::format("layers.{}.query", layer)); ++layer) {
    const model::TensorView& query = tensors.at(fmt::format("layers.{}.query", layer));
    const model::TensorView& key = tensors.at(fmt::format("layers.{}.key", layer));
    const model::TensorView& value = tensors.at(fmt::format("layers.{}.value", layer));
    if (!has_dimensions(query, 2)) tensors.refuse(query, "[heads, head_dim], none 0");
    if (!has_dimensions(key, 3) || query.shape[0] % key.shape[0] != 0 || key.shape[2] != query.shape[1]) {
      tensors.refuse(key, fmt::format("[kv_heads, keys, {}] with a number of kv_heads that divides {}",
                                      query.shape[1], query.shape[0]));
    }
    if (value.shape != key.shape) tensors.refuse(value, fmt::format("[{}]", fmt::join(key.shape, ", ")));
    if (layer == 0) {
      states_.heads = query.shape[0];
      states_.head_dim = query.shape[1];
      states_.kv_heads = key.shape[0];
      states_.keys = key.shape[1];
    } else if (query.shape[0] != states_.heads ||
               key.shape != std::vector{states_.kv_heads, states_.keys, states_.head_dim}) {
      tensors.refuse(key, fmt::format("those of layer 0: [{}, {}, {}] for {} heads", states_.kv_heads,
                                      states_.keys, states_.head_dim, states_.heads));
    }
    states_.layers.push_back({elements_of(query), elements_of(key), elements_of(value)});
  }
}

}  // namespace allot::app
