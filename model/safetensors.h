// Memory-mapped safetensors: model.safetensors or the shards of model.safetensors.index.json. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "model/mapped_file.h"

namespace allot::model {

enum class TensorDType { kF32, kF16, kBF16, kI64, kI32, kI8, kU8, kBool, kF64, kI16, kF8E4M3, kF8E5M2 };

// The format's name of a dtype: "BF16".
const char* dtype_name(TensorDType dtype);
// Bytes of an element.
uint64_t dtype_bytes(TensorDType dtype);

struct TensorView {
  std::string name;
  TensorDType dtype = TensorDType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // little endian, row major; lives as long as the SafetensorsFile
};

// Appends what a fingerprint hashes of a tensor: name, dtype, shape and up to four evenly spaced blocks of
// its bytes.
void append_sample(const TensorView& tensor, std::string* text);
// The same with all bytes in place of the blocks.
void update_with_all(const TensorView& tensor, Sha256* hash);

// One memory-mapped file. Everything that can be wrong in a file throws CorruptFile with the file, the tensor
// and the offsets: too short, header length beyond the file, header not JSON, dtype unknown, shape and byte
// count disagree, offsets out of order, overlapping, leaving gaps or reaching beyond the end.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path, MappingAccess access = MappingAccess::kWhole);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::vector<TensorView>& tensors() const;  // in file order

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

// All tensors of a model directory, by name, from all its files.
class Checkpoint {
 public:
  // Throws NotFound when the directory has neither model.safetensors nor an index, or an indexed shard is
  // missing; CorruptFile when a shard lacks a tensor that the index places in it. model.safetensors is
  // preferred over an index. Tensors of a shard that the index does not list are not part of the checkpoint.
  static Checkpoint open(const std::filesystem::path& directory,
                         MappingAccess access = MappingAccess::kWhole);
  // Throws CorruptFile naming the tensor and the directory when it is absent.
  const TensorView& at(const std::string& name) const;
  bool contains(const std::string& name) const;
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView> tensors_;
  std::filesystem::path directory_;
};

}  // namespace allot::model
