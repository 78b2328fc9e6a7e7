// Writes a safetensors file piece by piece, so that no tensor need be in memory. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace allot::model {

struct TensorHeader {
  std::string name;  // UTF-8
  TensorDType dtype = TensorDType::kF32;
  std::vector<int64_t> shape;  // outermost first, none negative

  uint64_t bytes() const;
};

class SafetensorsWriter {
 public:
  // Creates `path`, which must not exist, and writes the header; the names differ. Throws StorageError.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorHeader>& tensors);
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the tensors' data, in the order of the header, little endian and row major; a piece may
  // begin and end anywhere. Throws StorageError, and InvalidArgument for more bytes than the header
  // announces.
  void write(std::span<const std::byte> bytes);
  // After the last piece: syncs the file. Throws StorageError, and InvalidArgument when bytes are missing.
  void finish();

 private:
  void write_all(const char* data, size_t size);

  struct OpenFile {
    ~OpenFile();
    int descriptor = -1;
  };

  std::filesystem::path path_;
  OpenFile file_;
  uint64_t missing_ = 0;  // bytes of data still to come
};

}  // namespace allot::model
