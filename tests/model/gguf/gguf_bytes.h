// GGUF files made by hand, with every fault that a test wants.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "model/gguf/blocks.h"
#include "model/gguf/gguf_field.h"

namespace allot::model {

template <class T>
requires std::is_arithmetic_v<T> std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string bytes_of(std::string_view text) {
  return bytes_of(uint64_t{text.size()}).append(text);
}

inline std::string bytes_of(GgufType type) {
  return bytes_of(static_cast<uint32_t>(type));
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes;
  for (const T& value : values) bytes += bytes_of(value);
  return bytes;
}

// The value of a metadata key, with its type.
template <class T>
constexpr GgufType type_of() {
  if constexpr (std::same_as<T, uint8_t>) return GgufType::kUint8;
  if constexpr (std::same_as<T, int8_t>) return GgufType::kInt8;
  if constexpr (std::same_as<T, uint16_t>) return GgufType::kUint16;
  if constexpr (std::same_as<T, int16_t>) return GgufType::kInt16;
  if constexpr (std::same_as<T, uint32_t>) return GgufType::kUint32;
  if constexpr (std::same_as<T, int32_t>) return GgufType::kInt32;
  if constexpr (std::same_as<T, float>) return GgufType::kFloat32;
  if constexpr (std::same_as<T, bool>) return GgufType::kBool;
  if constexpr (std::same_as<T, uint64_t>) return GgufType::kUint64;
  if constexpr (std::same_as<T, int64_t>) return GgufType::kInt64;
  if constexpr (std::same_as<T, double>) return GgufType::kFloat64;
  return GgufType::kString;
}

template <class T>
std::string value_bytes(const T& value) {
  return bytes_of(type_of<T>()) + bytes_of(value);
}
inline std::string value_bytes(const char* text) {
  return bytes_of(GgufType::kString) + bytes_of(std::string_view(text));
}
template <class T>
std::string value_bytes(const std::vector<T>& values) {
  return bytes_of(GgufType::kArray) + bytes_of(type_of<T>()) + bytes_of(uint64_t{values.size()}) +
         bytes_of(values);
}

class GgufBytes {
 public:
  // Replaces the value when the key has one.
  template <class T>
  GgufBytes& set(const std::string& key, const T& value) {
    return set_bytes(key, value_bytes(value));
  }
  // Type and value as they are to stand in the file.
  GgufBytes& set_bytes(const std::string& key, std::string type_and_value) {
    remove(key);
    fields_.emplace_back(key, std::move(type_and_value));
    return *this;
  }
  GgufBytes& remove(const std::string& key) {
    std::erase_if(fields_, [&](const auto& field) { return field.first == key; });
    return *this;
  }

  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;  // outermost first
    uint32_t type = 0;
    std::string bytes;
  };
  // Replaces a tensor of that name.
  GgufBytes& tensor(Tensor tensor) {
    remove_tensor(tensor.name);
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  GgufBytes& remove_tensor(const std::string& name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
    return *this;
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }

  std::string header() const {
    std::string bytes =
        magic + bytes_of(version) + bytes_of(uint64_t{tensors_.size()}) + bytes_of(uint64_t{fields_.size()});
    for (const auto& [key, value] : fields_) bytes += bytes_of(std::string_view(key)) + value;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors_) {
      bytes += bytes_of(std::string_view(tensor.name)) + bytes_of(static_cast<uint32_t>(tensor.shape.size()));
      for (size_t i = tensor.shape.size(); i-- > 0;) bytes += bytes_of(tensor.shape[i]);
      bytes += bytes_of(tensor.type) + bytes_of(offset + shift);
      offset += padded(tensor.bytes.size());
    }
    return bytes;
  }

  std::string file() const {
    std::string bytes = header();
    bytes.resize(padded(bytes.size()));
    for (const Tensor& tensor : tensors_) {
      bytes += tensor.bytes;
      bytes.resize(padded(bytes.size()));
    }
    return bytes;
  }

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; the key is set apart from it
  uint64_t shift = 0;       // added to every offset

 private:
  uint64_t padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }

  std::vector<std::pair<std::string, std::string>> fields_;
  std::vector<Tensor> tensors_;
};

// Float32 numbers as a tensor.
inline GgufBytes::Tensor floats(const std::string& name, std::vector<uint64_t> shape,
                                const std::vector<float>& values) {
  return {.name = name,
          .shape = std::move(shape),
          .type = static_cast<uint32_t>(BlockType::kF32),
          .bytes = bytes_of(values)};
}

}  // namespace allot::model
