// Memory-mapped GGUF, the file format of llama.cpp, versions 2 and 3, little endian: metadata values by key,
// and tensors of blocks. What the keys and tensors mean is for the caller. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf/blocks.h"
#include "model/gguf/gguf_field.h"

namespace allot::model {

struct GgufTensor {
  std::string name;
  const BlockLayout* layout = nullptr;
  // Outermost first, as in safetensors; the file has them the other way round. The innermost is a multiple of
  // layout->elements.
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // whole blocks, row major; live as long as the GgufFile
};

class GgufFile {
 public:
  // Reads everything but the tensors' bytes. Throws NotFound; CorruptFile with the file and the offset, key
  // or tensor for whatever is wrong in it: not a GGUF, cut short, impossible counts, lengths or types, a key
  // or tensor twice, tensors unaligned, overlapping or beyond the end; and Unsupported for another version,
  // big endian, arrays in arrays, and tensors of types that find_block_layout does not have.
  explicit GgufFile(const std::filesystem::path& path);
  ~GgufFile();
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;

  const std::string& path() const;
  uint32_t version() const;

  // The metadata value of a key. at() throws CorruptFile naming the key when it is missing. Fields refer to
  // this object.
  std::optional<GgufField> find(std::string_view key) const;
  GgufField at(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const;              // in file order
  const GgufTensor* find_tensor(std::string_view name) const;  // null when absent

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

}  // namespace allot::model
